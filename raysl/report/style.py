"""The style sheets of the pages: one column that also fits a phone, colours for light and dark mode."""

STYLE = """
:root { color-scheme: light dark;
  --paper: #ffffff; --panel: #f5f7fa; --ink: #1a2028; --muted: #59636f; --grid: #d9dee5;
  --trained: #2563c9; --untrained: #8a95a3; --pixels: #c9a227; --good: #00704d; --bad: #c03a0a; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #12161c; --panel: #1b212a; --ink: #e8ecf1; --muted: #a3aebb; --grid: #353e4a;
  --trained: #6ea5ff; --untrained: #8793a1; --pixels: #d9b64a; --good: #4cc79a; --bad: #ff8a5c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 28px 20px 60px; }
svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif !important; }
svg, img { display: block; width: 100%; height: auto; }
.chart text { font-size: 12px; fill: var(--muted); }
.chart .title { fill: var(--ink); font-size: 13px; }
.chart .label { font-size: 12.5px; font-weight: 600; fill: var(--ink); }
.chart .halo { paint-order: stroke; stroke: var(--paper); stroke-width: 4px; stroke-linejoin: round; }
.chart .grid { stroke: var(--grid); stroke-width: .8; } .chart .axis { stroke: var(--muted); stroke-width: 1; }
h1 { font-size: 30px; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 21px; margin: 44px 0 12px; }
h3 { font-size: 15px; margin: 0 0 6px; }
p { margin: 8px 0; max-width: 75ch; text-wrap: pretty; }
code, pre { font: 14px/1.5 ui-monospace, "SFMono-Regular", Menlo, "DejaVu Sans Mono", monospace; }
code { overflow-wrap: anywhere; }
pre { background: var(--panel); border: 1px solid var(--grid); border-radius: 8px; padding: 12px 14px;
  white-space: pre-wrap; overflow-wrap: anywhere; margin: 8px 0; }
figure { margin: 0; min-width: 0; }
figcaption, .quiet { color: var(--muted); font-size: 14px; }
figcaption { margin-top: 6px; }
nav ul { display: flex; flex-wrap: wrap; gap: 2px 18px; list-style: none; padding: 0; margin: 14px 0 0;
  font-size: 14px; }
a { color: var(--trained); }
nav a { text-decoration: none; }
nav a:hover, nav a:focus { text-decoration: underline; }
.what { margin: 6px 0 0; color: var(--muted); overflow-wrap: anywhere; }
.what b { color: var(--ink); font-weight: 600; }
.note { border-left: 4px solid var(--pixels); background: var(--panel); padding: 10px 14px;
  border-radius: 0 8px 8px 0; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(215px, 1fr)); gap: 14px; margin: 24px 0 26px; }
.card { background: var(--panel); border: 1px solid var(--grid); border-radius: 10px; padding: 14px 16px; }
.card h3 { color: var(--muted); font-weight: 600; margin: 0; }
.card .big { font-size: 36px; font-weight: 700; line-height: 1.25; white-space: nowrap; }
.card .big small { font-size: 16px; font-weight: 400; color: var(--muted); }
.card .interval { font-size: 14px; color: var(--muted); margin-bottom: 2px; }
.card .gain { font-size: 14px; font-weight: 600; }
.card .level { font-weight: 400; color: var(--muted); }
.better { color: var(--good); }
.worse { color: var(--bad); }
.verdicts { margin: 0 0 8px; padding-left: 20px; max-width: 95ch; }
.verdicts li { margin: 4px 0; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: 24px 32px; }
.curves { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 320px), 1fr)); gap: 22px 26px; }
.curves h3 { display: flex; justify-content: space-between; gap: 10px; }
.curves h3 span { font-weight: 400; color: var(--muted); font-size: 14px; white-space: nowrap; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); gap: 26px 32px;
  padding: 10px 0; align-items: start; }
.figures > .whole { grid-column: 1 / -1; }
.figures > * { min-width: 0; }
.bars { margin-top: 24px; }
.compared .best { font-weight: 700; color: var(--good); }
.compared .spread { font-weight: 400; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; font-size: 14px; padding: 0; margin: 6px 0; list-style: none; }
.legend li { display: flex; align-items: center; gap: 6px; min-width: 0; overflow-wrap: anywhere; }
.legend svg { width: 12px; flex: none; }
.wide { overflow-x: auto; }
.sheets { display: flex; flex-wrap: wrap; gap: 12px 40px; }
.sheets figure { flex: 0 1 auto; }
.sheet img { max-width: 100%; height: auto; }
.heads { display: grid; font-size: 14px; color: var(--muted); margin-bottom: 4px; }
.heads span { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; padding-right: 8px; }
table { border-collapse: collapse; font-size: 15px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 5px 14px 5px 0; border-bottom: 1px solid var(--grid); vertical-align: top; }
th { color: var(--muted); font-weight: 600; font-size: 14px; white-space: nowrap; }
tr > *:last-child { padding-right: 0; }
.number { text-align: right; white-space: nowrap; }
.taken { overflow-wrap: anywhere; min-width: 88px; }
.main .spread { font-weight: 400; }
.spread { color: var(--muted); font-size: 13px; }
.name { overflow-wrap: anywhere; min-width: 118px; }
.remark { min-width: 190px; }
th.group { color: var(--ink); padding-top: 18px; font-size: 15px; }
.main { font-weight: 700; }
.bar { min-width: 60px; width: 40%; }
.bar div { height: 12px; margin-top: 6px; border-radius: 3px; background: var(--trained); min-width: 2px; }
.full { width: 100%; }
details { border: 1px solid var(--grid); border-radius: 8px; padding: 6px 14px; margin: 6px 0; }
details details { margin-left: 0; }
summary { cursor: pointer; font-weight: 600; }
dl.tree { margin: 8px 0; display: grid; grid-template-columns: minmax(110px, 200px) 1fr; gap: 5px 16px;
  font-size: 14px; }
dl.tree dt { font-weight: 600; overflow-wrap: anywhere; }
dl.tree dd { margin: 0; overflow-wrap: anywhere; }
dl.tree dd p { margin: 0; color: var(--muted); }
.events { margin: 24px 0 8px; }
.events ul { margin: 0; padding-left: 20px; }
@media (max-width: 560px) {
  main { padding: 20px 14px 40px; }
  .cards { grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 10px; margin: 16px 0 20px; }
  .card { padding: 10px 12px; }
  .card .big { font-size: 28px; }
  .card .big small { font-size: 14px; }
  th, td { padding-right: 9px; }
  table, th { font-size: 13px; }
  th { white-space: normal; }
  .name { min-width: 118px; position: sticky; left: 0; background: var(--paper); background-clip: padding-box; }
  .name code { font-size: 12px; }
}
"""
