// The timelines, drawn with Bokeh. Only what can be seen is handed to it: the neighbours of a stretch of compute that
// are too small to be seen share a rectangle. Collectives never do.
const LEFT = 150, RIGHT = 16, LANE = 38, FONT = "Helvetica, Arial, sans-serif";
const pen = document.createElement("canvas").getContext("2d");
pen.font = `11px ${FONT}`;
const range = new Bokeh.Range1d({start: 0, end: 1});
const charts = [];
// Bokeh takes a button held still for 0.3 s for a gesture of its own, and drops the drag that follows: never here.
Bokeh.require("core/ui_gestures").UIGestures.press_threshold = 2 ** 31 - 1;

function whole() {
  range.setv({start: -0.005 * LONGEST / UNIT.us, end: 1.015 * LONGEST / UNIT.us});
}

// Show a stretch of time, in microseconds, and no less than a nanosecond of it.
function show(from, to) {
  const most = 1.2 * LONGEST, middle = (from + to) / 2;
  const width = Math.min(Math.max(to - from, 1e-3), most);
  range.setv({start: (middle - width / 2) / UNIT.us, end: (middle + width / 2) / UNIT.us});
}

function shownNow() {
  return [range.start * UNIT.us, range.end * UNIT.us];
}

function zoom(factor) {
  const [from, to] = shownNow(), half = (to - from) * factor / 2, middle = (from + to) / 2;
  show(middle - half, middle + half);
}

function move(part) {
  const [from, to] = shownNow(), by = (to - from) * part;
  show(from + by, to + by);
}

function tools() {
  return [
    new Bokeh.BoxZoomTool({dimensions: "width"}),
    new Bokeh.WheelZoomTool({dimensions: "width", modifiers: {ctrl: true}}),
    new Bokeh.WheelPanTool({dimension: "width", modifiers: {shift: true}}),
  ];
}

function figure(options) {
  const zooming = tools();
  const plot = Bokeh.Plotting.figure({
    x_range: range, sizing_mode: "stretch_width", min_border_left: LEFT, min_border_right: RIGHT, tools: zooming,
    toolbar_location: null, lod_threshold: null, min_border_top: 4, ...options,
  });
  plot.toolbar.active_drag = zooming[0];
  plot.toolbar.active_scroll = zooming[1];
  return plot;
}

const empty = (...names) => new Bokeh.ColumnDataSource({data: Object.fromEntries(names.map((name) => [name, []]))});
const fields = (...names) => Object.fromEntries(names.map((name) => [name, {field: name}]));

class Chart {
  constructor(side, number) {
    this.side = side;
    this.number = number;
    this.lanes = 1 + side.groups.length;
    this.hits = {compute: [], collectives: []};
    this.chosen = -1;
    this.ends = {compute: side.compute.end, collectives: side.collectives.map((one) => one.end)};
    this.byGroup = side.groups.map((_, group) => side.collectives
      .map((one, i) => [one, i]).filter(([one]) => one.group === group).map(([, i]) => i));
    this.plot = this.makeLanes();
    this.memory = this.makeMemory();
  }

  makeLanes() {
    const labels = this.side.groups.map((group) => `group ${short(group.name, 10)} (${count(group.size, "rank")})`);
    const plot = figure({
      height: 10 + LANE * this.lanes, y_range: new Bokeh.Range1d({start: 0, end: this.lanes}), min_border_bottom: 4,
    });
    plot.xaxis.visible = false; // that of the memory below serves both
    plot.yaxis.ticker = new Bokeh.FixedTicker({ticks: [...Array(this.lanes).keys()].map((lane) => this.lanes - lane - 0.5)});
    const names = ["compute", ...labels];
    plot.yaxis.major_label_overrides = new Map(names.map((name, lane) => [this.lanes - lane - 0.5, name]));
    plot.ygrid.visible = false;
    const box = fields("left", "right", "bottom", "top");
    this.slices = empty("left", "right", "bottom", "top", "color");
    this.held = empty("left", "right", "bottom", "top");
    this.marked = empty("left", "right", "bottom", "top");
    this.labels = empty("x", "y", "text", "color");
    this.flow = empty("x0", "y0", "x1", "y1");
    this.frame = empty("left", "right", "bottom", "top");
    plot.quad({...box, fill_color: {field: "color"}, line_color: null, source: this.slices});
    this.heldGlyph = plot.quad({...box, source: this.held, line_color: null}).glyph;
    plot.text({...fields("x", "y", "text"), text_color: {field: "color"}, source: this.labels, text_baseline: "middle",
      text_font: FONT, text_font_size: "11px", x_offset: 4});
    this.markedGlyph = plot.quad({...box, source: this.marked, fill_alpha: 0.35, line_width: 2}).glyph;
    this.flowGlyph = plot.segment({...fields("x0", "y0", "x1", "y1"), source: this.flow, line_width: 2}).glyph;
    this.frameGlyph = plot.quad({...box, source: this.frame, fill_alpha: 0, line_width: 2.5}).glyph;
    return plot;
  }

  makeMemory() {
    const most = Math.max(...SIDES.map((side) => side.memory.bytes.reduce((a, b) => Math.max(a, b), 1)), data.limit || 0);
    this.size = most < 1e6 ? {name: "kB", bytes: 1e3} : most < 1e9 ? {name: "MB", bytes: 1e6} : {name: "GB", bytes: 1e9};
    const plot = figure({
      height: this.number ? 128 : 108, y_range: new Bokeh.Range1d({start: 0, end: 1.08 * most / this.size.bytes}),
      x_axis_label: this.number ? `time (${UNIT.name})` : null,
    });
    plot.yaxis.axis_label = `memory (${this.size.name})`;
    plot.yaxis.ticker = new Bokeh.BasicTicker({desired_num_ticks: 4});
    this.live = new Bokeh.ColumnDataSource({data: {x: [0, 0], y: [0, 0]}}); // Bokeh 3.9 hangs on steps without points
    const area = {x: {field: "x"}, y1: 0, y2: {field: "y"}, source: this.live, step_mode: "after", fill_alpha: 0.45};
    this.areaGlyph = plot.varea_step(area).glyph;
    if (data.limit) {
      this.limit = new Bokeh.Span({location: data.limit / this.size.bytes, dimension: "width", line_dash: "dashed"});
      this.limit.line_width = 2;
      plot.add_layout(this.limit);
    }
    return plot;
  }

  // How many microseconds a pixel is.
  get pixel() {
    const [from, to] = shownNow();
    return (to - from) / (this.plot.inner_width || 1000);
  }

  update() {
    const [from, to] = shownNow(), pixel = this.pixel;
    const boxes = {left: [], right: [], bottom: [], top: [], color: []};
    const labels = {x: [], y: [], text: [], color: []};
    const add = (lane, begin, end, name, text) => {
      const bottom = this.lanes - lane - 0.86;
      boxes.left.push(begin / UNIT.us); boxes.right.push(Math.max(end, begin + 0.6 * pixel) / UNIT.us);
      boxes.bottom.push(bottom); boxes.top.push(bottom + 0.72); boxes.color.push(color(name));
      const seen = Math.max(begin, from), room = (Math.min(end, to) - seen) / pixel - 9;
      const fitting = room < 24 || !text ? "" : fit(text, room);
      if (!fitting) return;
      labels.x.push(seen / UNIT.us); labels.y.push(bottom + 0.36); labels.text.push(fitting);
      labels.color.push(color(`on-${name === "compute" ? "compute" : "slice"}`));
    };
    for (const run of this.runs(from, to, pixel)) add(0, run.begin, run.end, run.matmul ? "matmul" : "compute", run.text);
    this.side.collectives.forEach((one) => {
      if (one.end >= from && one.begin <= to) add(1 + one.group, one.begin, one.end, one.kind, this.label(one));
    });
    this.slices.data = boxes;
    this.labels.data = labels;
    this.updateHeld(from, to, pixel);
    this.updateMarks(from, to, pixel);
    this.live.data = this.memoryShown(from, to, pixel);
  }

  label(one) {
    const more = one.members.length > 1 ? ` +${one.members.length - 1}` : "";
    return `${one.kind} ${one.origin.split(" ")[0] || one.op}${more}`;
  }

  // The stretches of compute to draw: ops, and runs of ops that are too short to be seen.
  runs(from, to, pixel) {
    const {begin, end, matmul, target} = this.side.compute, found = [];
    for (let i = after(end, from); i < begin.length && begin[i] <= to;) {
      const first = i;
      let work = end[i] - begin[i], matmuls = matmul[i] * work;
      if (work < 1.5 * pixel) {
        while (i + 1 < begin.length && end[i + 1] - begin[i + 1] < 1.5 * pixel && begin[i + 1] - end[i] < pixel &&
            end[i + 1] - begin[first] < 3 * pixel) {
          i += 1;
          work += end[i] - begin[i];
          matmuls += matmul[i] * (end[i] - begin[i]);
        }
      }
      found.push({first, last: i, begin: begin[first], end: end[i], matmul: matmuls * 2 > work,
        text: first === i ? data.texts[target[first]].replace(/^aten\.([^.]+)\..*$/, "$1") : ""});
      i += 1;
    }
    return found;
  }

  updateHeld(from, to, pixel) {
    const {begin, end} = this.side.holds, boxes = {left: [], right: [], bottom: [], top: []};
    let last = -Infinity;
    for (let i = after(end, from); i < begin.length && begin[i] <= to; i++) {
      // However short, a wait that stands alone is seen. Among others it is as wide as it is long.
      const least = begin[i] - last > 3 * pixel ? pixel : 0;
      last = Math.max(end[i], begin[i] + least);
      boxes.left.push(begin[i] / UNIT.us); boxes.right.push(last / UNIT.us);
      boxes.bottom.push(this.lanes - 0.94); boxes.top.push(this.lanes - 0.06);
    }
    this.held.data = boxes;
  }

  // What a search found, and the collective that was clicked on: from its launch over its flight to its wait.
  updateMarks(from, to, pixel) {
    const marks = {left: [], right: [], bottom: [], top: []}, {compute, collectives} = this.side;
    const add = (boxes, lane, begin, end) => {
      if (end < from || begin > to) return;
      boxes.left.push(begin / UNIT.us); boxes.right.push(Math.max(end, begin + 2 * pixel) / UNIT.us);
      boxes.bottom.push(this.lanes - lane - 0.9); boxes.top.push(this.lanes - lane - 0.1);
    };
    let last = -Infinity;
    for (const i of this.hits.compute) {
      if (compute.begin[i] - last < 2 * pixel) continue;
      add(marks, 0, compute.begin[i], compute.end[i]);
      last = compute.end[i];
    }
    for (const i of this.hits.collectives) add(marks, 1 + collectives[i].group, collectives[i].begin, collectives[i].end);
    this.marked.data = marks;
    const box = {left: [], right: [], bottom: [], top: []}, lines = {x0: [], y0: [], x1: [], y1: []};
    const one = collectives[this.chosen];
    if (one) {
      add(box, 1 + one.group, one.begin, one.end);
      const waited = one.waited === null ? one.end : one.waited, lane = this.lanes - 1 - one.group - 0.12;
      lines.x0 = [one.launched, one.end].map((us) => us / UNIT.us); lines.y0 = [this.lanes - 0.88, lane];
      lines.x1 = [one.begin, waited].map((us) => us / UNIT.us); lines.y1 = [lane, this.lanes - 0.88];
    }
    this.frame.data = box;
    this.flow.data = lines;
  }

  // Memory as steps; where several fall on a pixel, the highest of them.
  memoryShown(from, to, pixel) {
    const {at, bytes} = this.side.memory, x = [], y = [];
    let i = Math.max(0, after(at, from) - 1);
    while (i < at.length && at[i] <= to) {
      const begin = at[i];
      let high = bytes[i];
      while (i + 1 < at.length && at[i + 1] - begin < pixel) high = Math.max(high, bytes[++i]);
      x.push(begin / UNIT.us); y.push(high / this.size.bytes);
      i += 1;
    }
    const last = i ? bytes[i - 1] / this.size.bytes : 0;
    return {x: [...x, this.side.step / UNIT.us, this.side.step / UNIT.us], y: [...y, last, 0]};
  }

  // What lies below a point: {hold}, {run}, {collective} or nothing.
  at(us, y) {
    const lane = Math.floor(this.lanes - y), near = 3 * this.pixel;
    if (lane === 0) return this.atCompute(us, near);
    let best = -1, distance = near;
    for (const i of this.byGroup[lane - 1] || []) {
      const one = this.side.collectives[i], off = Math.max(one.begin - us, us - one.end, 0);
      if (off < distance) { best = i; distance = off; }
      if (off === 0) break;
    }
    return best < 0 ? null : {collective: best};
  }

  atCompute(us, near) {
    const {begin, end} = this.side.holds, hold = after(end, us - near / 2);
    if (hold < begin.length && begin[hold] <= us + near / 2) return {hold};
    const run = this.runs(us - near, us + near, this.pixel).find((one) => one.begin <= us && us <= one.end);
    return run ? {run} : null;
  }

  paint() {
    const ink = color("soft"), line = color("line");
    for (const plot of [this.plot, this.memory]) {
      // The page shows through: what is painted over leaves a seam of the old colour.
      plot.setv({background_fill_color: null, border_fill_color: null, outline_line_color: line});
      for (const axis of [plot.xaxis, plot.yaxis]) {
        axis.axis_line_color = line; axis.major_tick_line_color = line; axis.minor_tick_line_color = null;
        axis.major_label_text_color = ink; axis.axis_label_text_color = ink; axis.major_label_text_font_size = "12px";
        axis.major_tick_in = 0;
        axis.axis_label_text_font_style = "normal"; axis.axis_label_text_font_size = "12px";
      }
      plot.xgrid.grid_line_color = line; plot.ygrid.grid_line_color = line;
    }
    const set = (glyph, fill, edge) => glyph.setv({...(fill && {fill_color: color(fill)}), ...(edge && {line_color: color(edge)})});
    set(this.heldGlyph, "exposed"); set(this.markedGlyph, "hit", "hit"); set(this.areaGlyph, "memory");
    set(this.flowGlyph, null, "ink"); set(this.frameGlyph, null, "ink");
    if (this.limit) this.limit.line_color = color("limit");
  }
}

// As much of a text as there are pixels for; nothing if that says nothing.
function fit(text, pixels) {
  const part = pixels / pen.measureText(text).width, most = Math.floor(text.length * part) - 1;
  return part >= 1 ? text : most < 4 ? "" : short(text, most);
}

function short(text, most) {
  return text.length <= most ? text : `${text.slice(0, most - 1)}…`;
}
