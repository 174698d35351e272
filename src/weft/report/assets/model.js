// What the page knows, and how it says times and sizes.
const data = JSON.parse(document.getElementById("weft-data").textContent);
const KINDS = ["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "permute"];
const SIDES = data.sides;
const LONGEST = Math.max(...SIDES.map((side) => side.step), 1);

// The unit of the time axis: the charts count in it.
const UNIT = LONGEST < 10_000 ? {name: "us", us: 1} : LONGEST < 10_000_000 ? {name: "ms", us: 1e3} : {name: "s", us: 1e6};

const comma = (number, digits) =>
  number.toLocaleString("en", {minimumFractionDigits: digits, maximumFractionDigits: digits});

function timeText(us) {
  return Math.abs(us) < 10_000 ? `${comma(us, 1)} us` : `${comma(us / 1e3, 2)} ms`;
}

// In the unit of the axis, so that it can be found there.
function axisText(us) {
  return `${comma(us / UNIT.us, UNIT.us === 1 ? 1 : 3)} ${UNIT.name}`;
}

function sizeText(bytes) {
  if (bytes < 1e6) return `${comma(bytes, 0)} bytes`;
  return bytes < 1e9 ? `${comma(bytes / 1e6, 1)} MB` : `${comma(bytes / 1e9, 2)} GB`;
}

function count(number, noun) {
  return `${comma(number, 0)} ${noun}${number === 1 ? "" : "s"}`;
}

// The first place in sorted numbers whose number is greater than this one.
function after(numbers, number) {
  let low = 0, high = numbers.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] > number) high = middle; else low = middle + 1;
  }
  return low;
}

// An element with text and children. Text is set as text: what a program's names hold is never markup.
function make(tag, content, attributes) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  for (const child of [content].flat()) if (child !== undefined && child !== null) made.append(child);
  return made;
}

function facts(rows) {
  const list = make("dl");
  for (const [name, value, kind] of rows) {
    if (value !== "" && value !== undefined) list.append(make("dt", name), make("dd", value, kind ? {class: kind} : {}));
  }
  return list;
}

// Which ops and collectives of a side hold a text in their name, module, target or shape.
function search(side, text) {
  const wanted = text.toLowerCase();
  const known = data.texts.map((one) => one.toLowerCase().includes(wanted));
  const compute = side.compute, found = {compute: [], collectives: []};
  if (!wanted) return found;
  compute.op.forEach((op, i) => {
    if (known[compute.target[i]] || known[compute.origin[i]] || known[compute.shape[i]] ||
        op.toLowerCase().includes(wanted)) found.compute.push(i);
  });
  side.collectives.forEach((one, i) => { if (words(one).includes(wanted)) found.collectives.push(i); });
  return found;
}

function kindText(one) {
  return one.inside ? `${one.kind} in a matmul` : one.kind;
}

// All that a collective can be found by: its own words, and those of the collectives that it stands for.
function words(one) {
  const members = one.members.flatMap((member) => [member.op, SIDES[0].collectives[member.was]?.origin || ""]);
  return [one.op, kindText(one), one.origin, one.shape, ...one.waits, ...members].join("\n").toLowerCase();
}
