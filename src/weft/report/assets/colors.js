// The colours of the style sheet as it is now. To ask for one takes a while, so each is asked for once.
const colors = new Map();

function color(name) {
  if (!colors.has(name)) colors.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  return colors.get(name);
}
