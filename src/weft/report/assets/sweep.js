// Three plots beside each other: a mark for each point, solid after Weft and hollow before it.
const data = JSON.parse(document.getElementById("weft-data").textContent);
const PANELS = [["step", "step (ms)"], ["exposed", "exposed (% of the step)"], ["efficiency", "scaling efficiency (%)"]];
const SIDES = ["before", "after"];
const COLORS = ["accent", "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "permute", "exposed"];
const byId = (id) => document.getElementById(id);
const plots = [];

const lineColor = (number) => color(COLORS[number % COLORS.length]);

// One plot, and how to give it the colours of the theme.
function panel([field, label]) {
  const values = data.lines.flatMap((line) => line.points.flatMap((point) => SIDES.map((side) => point[side][field])));
  const ticks = [...data.places.keys()];
  const plot = Bokeh.Plotting.figure({
    height: 300, sizing_mode: "stretch_width", tools: [], toolbar_location: null, x_axis_label: data.along,
    min_border_left: 70, min_border_right: 16, min_border_top: 8, min_border_bottom: 60,
    x_range: new Bokeh.Range1d({start: -0.4, end: data.places.length - 0.6}),
    y_range: new Bokeh.Range1d({start: 0, end: 1.08 * Math.max(...values, 1e-9)}),
  });
  plot.yaxis.axis_label = label;
  plot.xaxis.ticker = new Bokeh.FixedTicker({ticks});
  plot.xaxis.major_label_overrides = new Map(data.places.map((place, tick) => [tick, place]));
  const drawn = data.lines.flatMap((line, number) => SIDES.map((side) => draw(plot, line, number, side, field)));
  plot.on_event("mousemove", (event) => point(event, field, plot.y_range.end));
  return {plot, paint: () => { paintFrame(plot); drawn.forEach((paint) => paint()); }};
}

function draw(plot, line, number, side, field) {
  const x = line.points.map((one) => one.at), y = line.points.map((one) => one[side][field]), after = side === "after";
  const joined = data.joined && x.length > 1 ? plot.line(x, y, {line_width: 2, line_dash: after ? "solid" : "dashed"}) : null;
  const marks = plot.scatter(x, y, {size: 9, marker: "circle", line_width: 2});
  return () => {
    const own = lineColor(number);
    if (joined) joined.glyph.line_color = own;
    marks.glyph.setv({line_color: own, fill_color: after ? own : color("paper")});
  };
}

// Say what the mark nearest to the pointer stands for.
function point(event, field, top) {
  let best = null, least = 0.35;
  for (const line of data.lines) {
    for (const one of line.points) {
      for (const side of SIDES) {
        const away = Math.hypot(one.at - event.x, 2 * (one[side][field] - event.y) / top);
        if (away < least) { least = away; best = {line, one, side}; }
      }
    }
  }
  if (!best) return;
  const name = [best.line.name, `${data.along} ${data.places[best.one.at]}`].filter(Boolean).join(", ");
  byId("chosen").textContent = `${name}, ${best.side}: ${best.one[best.side].text}`;
}

function paintFrame(plot) {
  const ink = color("soft"), edge = color("line");
  plot.setv({background_fill_color: null, border_fill_color: null, outline_line_color: edge});
  for (const axis of [plot.xaxis, plot.yaxis]) {
    axis.axis_line_color = edge; axis.major_tick_line_color = edge; axis.minor_tick_line_color = null;
    axis.major_label_text_color = ink; axis.axis_label_text_color = ink; axis.axis_label_text_font_style = "normal";
  }
  plot.xgrid.grid_line_color = null; plot.ygrid.grid_line_color = edge;
}

function element(tag, text, kind) {
  const made = document.createElement(tag);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function entry(text, kind, own) {
  const made = element("span", ""), stroke = element("i", "", kind);
  if (own) stroke.style.background = own;
  made.append(stroke, text);
  return made;
}

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  colors.clear();
  plots.forEach((one) => one.paint());
  byId("legend").replaceChildren(
    ...data.lines.flatMap((line, number) => (line.name ? [entry(line.name, "", lineColor(number))] : [])),
    entry("before", "stroke dashed"), entry("after", "stroke"));
}

async function start() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  setTheme(system.matches);
  // Efficiency says something only where the number of ranks changes.
  const shown = PANELS.filter(([field]) => field !== "efficiency" || data.along === "world-size");
  plots.push(...shown.map(panel));
  const drawing = new Bokeh.Document(), places = plots.map(() => element("div", "", "plot"));
  byId("plots").append(...places);
  plots.forEach((one) => { one.paint(); drawing.add_root(one.plot); });
  await Bokeh.embed.add_document_standalone(drawing, byId("plots"), places);
  system.addEventListener("change", () => setTheme(system.matches));
  byId("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme !== "dark"));
  requestAnimationFrame(() => requestAnimationFrame(() => { document.documentElement.dataset.ready = "yes"; }));
}

start();
