// One number against another, a dot a row, with those that nothing beats joined.

function isLess(name, spec) {
  const known = DATA.objectives.find((one) => one.metric === name);
  return known ? known.mode === "min" : Boolean(spec.less);
}

function drawScatter(name, box, svg, width) {
  const spec = DATA.scatters[name];
  const across = document.getElementById(name + "-x")?.value ?? spec.x[0];
  const told = DATA.rows.map((row, place) => ({ row, place, x: row.numbers[across], y: row.numbers[spec.y] }))
    .filter((one) => one.x && one.y && !hidden.has(one.place));
  const wide = Math.min(width, 760), height = wide < 560 ? 310 : 370;
  const unit = across === "seconds" ? clockUnit(Math.max(0, ...told.map((one) => one.x[0]))) : { name: across, by: 1 };
  sized(svg, wide, height, `${spec.y} against ${across}`);
  const [low, high] = extremes(told.map((one) => one.x[0]));
  const kind = low > 0 && high / low >= 20 ? "log" : "linear";
  const spell = across === "seconds" ? seconds : spelled;
  const [bottom, top] = extremes(told.map((one) => one.y[0]));
  const reach = (top - bottom) / 2 || Infinity; // an interval of two seeds may be ten times as long as all else
  const near = (value) => Math.min(Math.max(value, bottom - reach), top + reach);
  const ys = [...told.flatMap((one) => one.y.map(near)), ...referenceValues(spec.y)], xs = told.map((one) => one.x[0] / unit.by);
  const axes = frame(svg, wide, height, xs, ys, { x: unit.name, y: spec.y }, { x: kind, top: 40 });
  const { x, y, left, right } = axes;
  references(svg, spec.y, axes, "start"); // the best dots are at the right
  const note = document.getElementById(name + "-note");
  if (note) note.textContent = (spec.notes && " " + spec.notes[across]) || "";
  if (name !== "geometry") joined(svg, told, (one) => x.place(one / unit.by), y, isLess(across, spec), isLess(spec.y, spec));
  const points = [];
  for (const one of [...told].reverse()) {
    const at = { x: x.place(one.x[0] / unit.by), y: y.place(one.y[0]) }, kind = rankClass(one.place);
    if (one.y.length > 1)
      draw(svg, "line", { x1: at.x, x2: at.x, y1: y.place(near(one.y[1])), y2: y.place(near(one.y[2])), class: "reach " + kind, "data-row": one.place });
    draw(svg, "circle", { cx: at.x, cy: at.y, r: kind === "rest" ? 4 : 6, class: "dot " + kind, "data-row": one.place });
    const interval = one.y.length > 1 ? ` (${spelled(one.y[1])} to ${spelled(one.y[2])})` : "";
    points.push({ row: one.place, ...at, lines: [one.row.name, `${spec.y} ${spelled(one.y[0])}${interval}`, `${across} ${spell(one.x[0])}, rank ${one.place + 1}`, ...one.row.told] });
  }
  named(svg, points, left, right);
  return points;
}

function joined(svg, told, x, y, lessAcross, lessUp) {
  // The front of what came to its end: from the best in one number to the best in the other, in steps.
  const [across, up] = [lessAcross ? 1 : -1, lessUp ? 1 : -1];
  const ordered = told.filter((one) => one.row.whole).sort((one, other) => across * (one.x[0] - other.x[0]) || up * (one.y[0] - other.y[0]));
  let d = "", before = Infinity, height = null;
  for (const one of ordered) {
    if (up * one.y[0] >= before) continue;
    before = up * one.y[0];
    const at = [x(one.x[0]).toFixed(1), y.place(one.y[0]).toFixed(1)];
    d += d ? `L${at[0]} ${height}L${at[0]} ${at[1]}` : `M${at[0]} ${at[1]}`;
    height = at[1];
  }
  if (d) draw(svg, "path", { d, class: "front" });
}

function named(svg, points, left, right) {
  // Names of the best beside their dots, where there is room.
  const taken = [];
  for (const one of points.filter((point) => point.row < DATA.best).sort((a, b) => a.row - b.row)) {
    const text = cut(`${one.row + 1} ${DATA.rows[one.row].name}`, 26), width = text.length * LETTER;
    const places = [[10, 4, "start"], [-10, 4, "end"], [0, -11, "middle"], [0, 19, "middle"], [10, -11, "start"], [-10, 19, "end"], [8, -11, "end"], [-6, -24, "middle"], [0, 32, "middle"], [8, -24, "end"], [10, 19, "start"], [10, 32, "start"], [10, -24, "start"]];
    for (const [dx, dy, anchor] of places) {
      const from = one.x + dx - (anchor === "end" ? width : anchor === "middle" ? width / 2 : 0);
      const own = { left: from, right: from + width, top: one.y + dy - 11, bottom: one.y + dy + 3 };
      const meets = (other) => own.left < other.right && other.left < own.right && own.top < other.bottom && other.top < own.bottom;
      const onDot = points.some((p) => p !== one && p.row < DATA.best && meets({ left: p.x - 6, right: p.x + 6, top: p.y - 6, bottom: p.y + 6 }));
      if (own.left < left || own.right > right || own.top < 17 || onDot || taken.some(meets)) continue;
      taken.push(own);
      draw(svg, "text", { x: one.x + dx, y: one.y + dy, class: "label halo", "text-anchor": anchor, "data-row": one.row }, text);
      break;
    }
  }
}
