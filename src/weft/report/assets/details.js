// What is said of a thing: in passing, at the pointer, and at length, beside the timelines.
const tooltip = document.getElementById("tooltip");
const details = document.getElementById("details");

function hover(chart, event) {
  const found = chart.at(event.x * UNIT.us, event.y);
  if (!found) return leave();
  tooltip.replaceChildren(...described(chart.side, found));
  tooltip.hidden = false;
  const box = chart.place.getBoundingClientRect();
  const x = box.left + event.sx + 16, y = box.top + event.sy + 18;
  tooltip.style.left = `${Math.max(4, Math.min(x, innerWidth - tooltip.offsetWidth - 8))}px`;
  const above = y + tooltip.offsetHeight > innerHeight - 4;
  tooltip.style.top = `${above ? Math.max(4, y - tooltip.offsetHeight - 30) : y}px`;
}

function leave() {
  tooltip.hidden = true;
}

function described(side, found) {
  if (found.collective !== undefined) return describedCollective(side, found.collective);
  if (found.hold !== undefined) return describedHold(side, found.hold);
  return describedRun(side, found.run);
}

function describedCollective(side, index) {
  const one = side.collectives[index];
  const more = one.members.length ? [["members", comma(one.members.length, 0)]] : [];
  return [make("b", one.op), facts([...collectiveFacts(side, one), ...more, ...reasons(one)])];
}

function collectiveFacts(side, one) {
  const group = side.groups[one.group];
  return [
    ["kind", `${kindText(one)} over ${group.name}, ${count(group.size, "rank")}`],
    ["module", one.origin],
    ["shape", one.shape],
    ["bytes", sizeText(one.bytes)],
    ["time", `${timeText(one.end - one.begin)}, from ${timeText(one.begin)}`],
    ["exposed", one.exposed ? timeText(one.exposed) : "", "exposed"],
  ];
}

function reasons(one) {
  return one.causes.map((cause, i) => [i ? "" : "reason", `${timeText(cause.us)}: ${cause.text}`]);
}

function describedHold(side, index) {
  const {begin, end, of} = side.holds, one = side.collectives[of[index]];
  const rows = [["exposed", timeText(end[index] - begin[index]), "exposed"], ["from", timeText(begin[index])]];
  if (!one) return [make("b", "waiting"), facts(rows)];
  const group = side.groups[one.group];
  rows.push(["for", `${one.kind} over ${group.name}`], ["module", one.origin], ["shape", one.shape],
    ["bytes", sizeText(one.bytes)], ...reasons(one));
  return [make("b", `waiting for ${one.op}`), facts(rows)];
}

function describedRun(side, run) {
  const {begin, end, op, target, origin, shape} = side.compute, text = (i) => data.texts[i];
  if (run.first === run.last) {
    const i = run.first;
    return [make("b", op[i]), facts([["op", text(target[i])], ["module", text(origin[i])], ["shape", text(shape[i])],
      ["time", `${timeText(end[i] - begin[i])}, from ${timeText(begin[i])}`]])];
  }
  const places = [];
  for (let i = run.first; i <= run.last; i++) places.push(i);
  places.sort((a, b) => (end[b] - begin[b]) - (end[a] - begin[a]));
  const list = places.slice(0, 6).map((i) => [timeText(end[i] - begin[i]), `${op[i]}  ${text(origin[i])}`]);
  const rest = places.length > 6 ? [["", `and ${comma(places.length - 6, 0)} more: zoom in to see them`]] : [];
  return [make("b", `${count(places.length, "op")} in ${timeText(run.end - run.begin)}`), facts([...list, ...rest])];
}

// Show a collective at length: when it was launched and waited for, its members, and what passes said of it.
function choose(number, index) {
  const side = SIDES[number];
  details.replaceChildren(...lengthy(side, number, side.collectives[index]));
  chosen(number, index);
}

function chooseNothing() {
  chosen(-1, -1);
}

function chosen(number, index) {
  for (const chart of charts) chart.chosen = chart.number === number ? index : -1;
  details.hidden = index < 0;
  refresh();
  markRow();
}

function lengthy(side, number, one) {
  const shut = make("button", "×", {class: "close", type: "button", "aria-label": "Close", onclick: chooseNothing});
  const said = one.remarks.map((i) => data.remarks[i]);
  return [
    shut, make("h3", `${one.op} (${side.name})`), facts([...collectiveFacts(side, one), ...reasons(one)]),
    ...part("Start and wait", one.inside ? [] : [facts([["launched", timeText(one.launched)], ["under way", timeText(one.begin)],
      ["landed", timeText(one.end)], ["waited until", one.waited === null ? "end of step" : timeText(one.waited)],
      ["at", one.waits.length > 4 ? `${one.waits.slice(0, 4).join(", ")} and ${one.waits.length - 4} more` : one.waits.join(", ")]])]),
    ...part(`Members (${one.members.length})`, one.members.length ? [make("ul", one.members.map(memberItem))] : []),
    ...part(`Remarks (${said.length})`, said.length
      ? [make("ul", said.map((remark) => make("li", `${remark.pass}: ${remark.verdict}: ${remark.text}`)))] : []),
    make("p", make("a", "zoom to it", {role: "button", tabindex: "0", onclick: () => goTo(number, one)})),
  ];
}

function part(title, content) {
  return content.length ? [make("h4", title), ...content] : [];
}

// A member was a collective of its own before.
function memberItem(member) {
  const was = SIDES[0].collectives[member.was];
  const name = was ? `${member.op}: ${was.origin.split(" ")[0] || was.shape}` : member.op;
  return make("li", was ? make("a", name, {role: "button", tabindex: "0", onclick: () => choose(0, member.was)}) : name);
}

function goTo(number, one) {
  const from = Math.min(one.launched, one.begin), to = Math.max(one.end, one.waited || 0), room = 0.15 * (to - from);
  show(from - room, to + room);
}
