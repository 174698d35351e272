// The rest of the page: tables, search, colours, keys.
const COLUMNS = [
  {name: "collective", value: (one) => one.op},
  {name: "kind", value: kindText},
  {name: "group", value: (one, side) => side.groups[one.group].name},
  {name: "module", value: (one) => one.origin},
  {name: "shape", value: (one) => one.shape},
  {name: "members", value: (one) => one.members.length, text: (value) => value || "", number: true},
  {name: "size", value: (one) => one.bytes, text: sizeText, number: true},
  {name: "begins", value: (one) => one.begin, text: timeText, number: true},
  {name: "takes", value: (one) => one.end - one.begin, text: timeText, number: true},
  {name: "exposed", value: (one) => one.exposed, text: (value) => (value ? timeText(value) : ""), number: true},
];
const PAGE = 50; // rows that a table shows before it is asked for more: at first sight nobody sees more
const byId = (id) => document.getElementById(id);
const table = {side: 1, column: 9, down: true, limit: PAGE};
const found = {text: "", places: [], next: 0};
let remarkLimit = PAGE;
let waiting = false;

// Draw again, once, before the next picture.
function refresh() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    charts.forEach((chart) => chart.update());
    const [from, to] = shownNow();
    byId("window").textContent = `${axisText(Math.max(0, from))} to ${axisText(Math.min(LONGEST, to))}`;
  });
}

function rowsShown() {
  const side = SIDES[table.side], column = COLUMNS[table.column];
  const rows = side.collectives.map((one, i) => ({one, i, value: column.value(one, side)}));
  const kept = found.text ? rows.filter(({one}) => words(one).includes(found.text)) : rows;
  const order = column.number ? (a, b) => a - b : (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  return kept.sort((a, b) => (table.down ? -1 : 1) * order(a.value, b.value) || a.i - b.i);
}

function drawTable() {
  const rows = rowsShown(), side = SIDES[table.side];
  byId("collectives").tHead.replaceChildren(make("tr", COLUMNS.map((column, i) => make(
    "th", column.name + (i === table.column ? (table.down ? " ↓" : " ↑") : ""),
    {class: `sortable${column.number ? " number" : ""}`, onclick: () => sortBy(i),
      "aria-sort": i === table.column ? (table.down ? "descending" : "ascending") : "none"}))));
  byId("collectives").tBodies[0].replaceChildren(...rows.slice(0, table.limit).map(({one, i}) => make(
    "tr", COLUMNS.map((column) => cell(column, one, side)), {"data-row": i, onclick: () => pick(i)})));
  byId("sides").replaceChildren(...SIDES.map((one, i) => make("button", one.name, {
    type: "button", role: "tab", "aria-selected": String(i === table.side),
    onclick: () => { table.side = i; table.limit = PAGE; drawTable(); }})));
  byId("rows").textContent = rows.length === side.collectives.length ? count(rows.length, "collective")
    : `${comma(rows.length, 0)} of ${count(side.collectives.length, "collective")}`;
  moreButton(byId("more"), rows.length - table.limit, () => { table.limit += 20 * PAGE; drawTable(); });
  markRow();
}

function cell(column, one, side) {
  const value = column.value(one, side), text = String(column.text ? column.text(value) : value);
  const kind = [column.number ? "number" : "", column.name === "exposed" && value ? "exposed" : ""].join(" ").trim();
  if (column.name !== "kind") return make("td", text, {class: kind, title: text});
  const chip = make("span", "", {class: "chip"});
  chip.style.background = `var(--${one.kind})`;
  return make("td", [chip, text], {class: kind});
}

function moreButton(button, left, action) {
  button.hidden = left <= 0;
  button.textContent = `show more (${comma(Math.max(left, 0), 0)} left)`;
  button.onclick = action;
}

function sortBy(column) {
  table.down = column === table.column ? !table.down : Boolean(COLUMNS[column].number);
  table.column = column;
  drawTable();
}

function pick(index) {
  choose(table.side, index);
  goTo(table.side, SIDES[table.side].collectives[index]);
}

function markRow() {
  const index = charts.find((chart) => chart.number === table.side)?.chosen;
  for (const row of byId("collectives").tBodies[0].rows) row.classList.toggle("chosen", Number(row.dataset.row) === index);
}

function drawRemarks() {
  const kept = data.remarks.filter((one) => `${one.pass}\n${one.op}\n${one.text}`.toLowerCase().includes(found.text));
  byId("remarks").tHead.replaceChildren(make("tr", ["pass", "verdict", "op", "remark"].map((name) => make("th", name))));
  byId("remarks").tBodies[0].replaceChildren(...kept.slice(0, remarkLimit).map((one) => make(
    "tr", [one.pass, one.verdict, one.op, one.text].map((text) => make("td", text)))));
  byId("remarks").closest("section").hidden = !data.remarks.length;
  moreButton(byId("more-remarks"), kept.length - remarkLimit, () => { remarkLimit += 20 * PAGE; drawRemarks(); });
}

function searchFor(text) {
  found.text = text.trim().toLowerCase();
  found.next = 0;
  found.places = [];
  for (const chart of charts) {
    const {compute, collectives} = chart.side;
    chart.hits = search(chart.side, found.text);
    found.places.push(
      ...chart.hits.collectives.map((i) => ({number: chart.number, index: i, begin: collectives[i].begin, end: collectives[i].end})),
      ...chart.hits.compute.map((i) => ({begin: compute.begin[i], end: compute.end[i]})));
  }
  byId("hits").textContent = found.text ? (found.places.length ? count(found.places.length, "hit") : "nothing found") : "";
  byId("next").hidden = !found.places.length;
  table.limit = PAGE;
  drawTable();
  drawRemarks();
  refresh();
}

// Go to the next hit; if it is a collective, choose it.
function nextHit() {
  if (!found.places.length) return;
  const place = found.places[found.next % found.places.length], room = 4 * (place.end - place.begin) + 1;
  found.next = found.next % found.places.length + 1;
  byId("hits").textContent = `${comma(found.next, 0)} of ${count(found.places.length, "hit")}`;
  if (place.index !== undefined) choose(place.number, place.index);
  show(place.begin - room, place.end + room);
}

function drawLegend() {
  const kinds = KINDS.filter((kind) => SIDES.some((side) => side.collectives.some((one) => one.kind === kind)));
  const names = [["exposed", "exposed: compute waits"], ["matmul", "matmul"], ["compute", "other compute"],
    ...kinds.map((kind) => [kind, kind])];
  byId("legend").replaceChildren(...names.map(([name, text]) => {
    const chip = make("i");
    chip.style.background = `var(--${name})`;
    return make("span", [chip, text]);
  }));
}

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  colors.clear();
  charts.forEach((chart) => chart.paint());
  refresh();
}

const KEYS = {w: () => zoom(0.6), s: () => zoom(1 / 0.6), a: () => move(-0.2), d: () => move(0.2), 0: whole};

function listen() {
  byId("search").addEventListener("input", (event) => searchFor(event.target.value));
  byId("search").addEventListener("keydown", (event) => { if (event.key === "Enter") nextHit(); });
  byId("next").addEventListener("click", nextHit);
  byId("zoom-in").addEventListener("click", KEYS.w);
  byId("zoom-out").addEventListener("click", KEYS.s);
  byId("whole").addEventListener("click", whole);
  byId("charts").addEventListener("dblclick", whole); // the browser knows what its user calls a double click
  const system = matchMedia("(prefers-color-scheme: dark)");
  system.addEventListener("change", () => setTheme(system.matches));
  byId("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme !== "dark"));
  document.addEventListener("keydown", (event) => {
    if (event.target.tagName === "INPUT" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") chooseNothing();
    KEYS[event.key]?.();
  });
  range.change.connect(refresh);
  return system.matches;
}

function title(side, i) {
  const wait = side.holds.end.reduce((sum, end, k) => sum + end - side.holds.begin[k], 0);
  const text = `step ${timeText(side.step)}, exposed ${timeText(wait)}, ${count(side.collectives.length, "collective")}`;
  return make("div", [i ? "After" : "Before", make("small", text)], {class: "chart-title"});
}

async function start() {
  const dark = listen();
  setTheme(dark);
  const drawing = new Bokeh.Document(); // one for all: they share their range
  const places = [];
  for (const [i, side] of SIDES.entries()) {
    const chart = new Chart(side, i);
    chart.place = make("div");
    const memory = make("div");
    byId("charts").append(title(side, i), chart.place, memory);
    chart.paint();
    chart.plot.on_event("mousemove", (event) => hover(chart, event));
    chart.plot.on_event("mouseleave", leave);
    chart.plot.on_event("tap", (event) => {
      const hit = chart.at(event.x * UNIT.us, event.y);
      const index = hit?.collective ?? (hit?.hold === undefined ? -1 : side.holds.of[hit.hold]);
      if (index >= 0) choose(i, index);
    });
    chart.plot.properties.inner_width.change.connect(refresh);
    charts.push(chart);
    drawing.add_root(chart.plot);
    drawing.add_root(chart.memory);
    places.push(chart.place, memory);
  }
  await Bokeh.embed.add_document_standalone(drawing, byId("charts"), places);
  whole();
  drawLegend();
  drawTable();
  drawRemarks();
  refresh();
  requestAnimationFrame(() => requestAnimationFrame(() => { document.documentElement.dataset.ready = "yes"; }));
}

start();
