// What runs logged, a line a run, against epochs or seconds.

function rowOfRun() {
  const found = [];
  DATA.rows.forEach((row, place) => row.runs.forEach((run) => (found[run] = place)));
  return found;
}

function timed(clock, epoch) {
  // Seconds at an epoch, on straight lines between what is known: [epoch, seconds, epoch, seconds ...].
  let [e0, s0] = [0, 0];
  for (let at = 0; at < clock.length; at += 2) {
    const [e1, s1] = [clock[at], clock[at + 1]];
    if (epoch <= e1) return s0 + ((s1 - s0) * (epoch - e0)) / (e1 - e0 || 1);
    if (at + 2 < clock.length) [e0, s0] = [e1, s1];
    else return e1 > e0 ? s0 + ((s1 - s0) * (epoch - e0)) / (e1 - e0) : s1;
  }
  return null;
}

function drawCurves(box, svg, width) {
  const metric = document.getElementById("curve-metric")?.value ?? DATA.curves[0];
  const by = document.getElementById("curve-axis")?.value ?? "epochs";
  const turn = DATA.curves.indexOf(metric), owner = rowOfRun(), lines = [];
  DATA.runs.forEach((run, place) => {
    const flat = run.lines[turn], row = owner[place];
    if (!flat || hidden.has(row) || (by === "seconds" && !run.clock)) return;
    const values = [];
    for (let at = 0; at < flat.length; at += 2)
      values.push([by === "seconds" ? timed(run.clock, flat[at]) : flat[at], flat[at + 1], flat[at]]);
    lines.push({ place, row, run, values });
  });
  const height = width < 560 ? 300 : 400;
  sized(svg, width, height, `${metric} of each run over ${by}`);
  const xs = [0, ...lines.flatMap((line) => line.values.map(([at]) => at))];
  const ys = [...lines.flatMap((line) => line.values.map(([, value]) => value)), ...referenceValues(metric)];
  const unit = by === "seconds" ? clockUnit(Math.max(...extremes(xs))) : { name: by, by: 1 };
  const across = xs.map((at) => at / unit.by);
  const axes = frame(svg, width, height, across, ys, { x: unit.name, y: metric }, { pad: 0.01 });
  const { x, y } = axes;
  references(svg, metric, axes);
  const points = [];
  for (const line of lines.sort((one, other) => other.row - one.row)) {
    const kind = rankClass(line.row), own = DATA.rows[line.row];
    const placed = line.values.map(([at, value]) => [x.place(at / unit.by).toFixed(1), y.place(value).toFixed(1)]);
    draw(svg, "path", { d: "M" + placed.map((pair) => pair.join(" ")).join("L"), class: "curve " + kind, "data-row": line.row });
    const [endX, endY] = placed.at(-1);
    if (line.run.status !== "running" || placed.length === 1)
      draw(svg, "circle", { cx: endX, cy: endY, r: kind === "rest" ? 2 : 3.5, class: "end " + kind, "data-row": line.row });
    const seeds = own.runs.length > 1 ? `, seed ${line.run.seed}` : "";
    line.values.forEach(([, value, epoch], at) => points.push({
      row: line.row, x: Number(placed[at][0]), y: Number(placed[at][1]),
      lines: [own.name + seeds, `${metric} ${spelled(value)} at epoch ${spelled(epoch)}`, `${line.run.status}, rank ${line.row + 1}`, ...own.told],
    }));
  }
  return points;
}

function curveLegend(box) {
  // Above the drawing: what the colours are.
  const list = document.createElement("ul");
  list.className = "legend";
  DATA.rows.slice(0, DATA.best).forEach((row, place) => list.append(legendItem(rankClass(place), `${place + 1}: ${row.name}`)));
  if (DATA.rows.length > DATA.best) list.append(legendItem("rest", "others"));
  box.before(list);
}

function legendItem(kind, text) {
  const item = document.createElement("li");
  const mark = draw(null, "svg", { viewBox: "0 0 28 12", class: "line", "aria-hidden": "true" });
  draw(mark, "path", { d: "M1 6L27 6", class: "curve " + kind });
  item.append(mark, text);
  return item;
}
