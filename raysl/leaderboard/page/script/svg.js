// Elements of drawings, scales and the numbers at their axes.

const SVG = "http://www.w3.org/2000/svg";

function draw(parent, name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.appendChild(made);
  return made;
}

function spelled(value) {
  // A number in few letters, three digits of it.
  if (value === null || value === undefined || !isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size && (size < 1e-3 || size >= 1e6)) return Number(value.toPrecision(3)).toExponential();
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(size >= 10 ? 4 : 3)));
}

function seconds(value) {
  if (value < 120) return spelled(value) + " s";
  return value < 7200 ? spelled(value / 60) + " min" : spelled(value / 3600) + " h";
}

function clockUnit(most) {
  // What seconds up to `most` are best told in.
  return most < 180 ? { name: "seconds", by: 1 } : most < 10800 ? { name: "minutes", by: 60 } : { name: "hours", by: 3600 };
}

function steps(low, high, count) {
  // Round numbers from low to high, about `count` of them.
  const rough = (high - low) / Math.max(1, count);
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * unit).find((one) => one >= rough - unit * 1e-9);
  const found = [];
  for (let turn = Math.ceil(low / step - 1e-9); turn * step <= high + step * 1e-9; turn++)
    found.push(Number((turn * step).toPrecision(12)));
  return found;
}

function decades(low, high, count) {
  // Powers of ten between, with 2 and 5 of each where there is room, or round numbers where there are hardly any.
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
    for (const part of [1, 2, 5]) {
      const value = Number((part * 10 ** power).toPrecision(6));
      if (value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9)) found.push([value, part]);
    }
  const tens = found.filter(([, part]) => part === 1).map(([value]) => value);
  if (found.length <= count && found.length > 1) return found.map(([value]) => value);
  if (tens.length > count) return tens.filter((_, turn) => turn % Math.ceil(tens.length / count) === 0);
  return tens.length > 1 ? tens : steps(low, high, count);
}

function scale(values, from, to, count, kind = "linear", pad = 0.04) {
  // From numbers to pixels, with the numbers to write at the axis.
  let low = Math.min(...values, Infinity);
  let high = Math.max(...values, -Infinity);
  if (!isFinite(low)) [low, high] = [0, 1];
  const is_log = kind === "log" && low > 0;
  if (low === high) [low, high] = is_log ? [low / 2, high * 2] : [low - (Math.abs(low) || 1) / 10, high + (Math.abs(high) || 1) / 10];
  const turned = is_log ? Math.log10 : (value) => value;
  const [first, last] = [turned(low), turned(high)];
  const room = (last - first) * pad;
  const place = (value) => from + ((turned(value) - first + room) / (last - first + 2 * room)) * (to - from);
  return { place, low, high, ticks: is_log ? decades(low, high, count) : steps(low, high, count) };
}

function extremes(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : [];
}

function cut(text, letters) {
  return text.length <= letters ? text : text.slice(0, Math.max(1, letters - 1)) + "…";
}
