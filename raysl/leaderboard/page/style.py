"""The rules of a leaderboard's page, after those of all pages."""

LEADERBOARD_STYLE = """
:root { --best1: #0067b8; --best2: #cf4a00; --best3: #00805a; --rest: #8d98a6; --low: #dcb47c; --high: #0b3f94;
  --lit: #e9f0fb; --stopped: #b98600; --waiting: #c8d0da; }
@media (prefers-color-scheme: dark) { :root {
  --best1: #63b3ff; --best2: #ff9350; --best3: #3fd6a4; --rest: #6d7988; --low: #74532c; --high: #9fd0ff;
  --lit: #22324a; --stopped: #e0b23e; --waiting: #4a5563; } }
main { max-width: 1360px; }
.what, .note { max-width: none; } p.quiet { max-width: 110ch; }
.pair > section { min-width: 0; }
.scatters { gap: 0 30px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); }
.progress { display: flex; gap: 2px; height: 12px; margin: 18px 0 6px; border-radius: 6px; overflow: hidden;
  background: var(--panel); }
.progress div { min-width: 4px; }
.progress .finished { background: var(--good); } .progress .stopped { background: var(--stopped); }
.progress .running { background: var(--trained); } .progress .failed { background: var(--bad); }
.progress .waiting { background: var(--waiting); }
.card { overflow-wrap: anywhere; } .card .told { font-size: 15px; }
.card .lead { font-size: 19px; font-weight: 700; margin: 4px 0; overflow-wrap: anywhere; }
.mark { font-style: normal; display: inline-block; width: 1.3em; text-align: center; margin-right: 3px; }
.mark.finished { color: var(--good); } .mark.stopped { color: var(--stopped); } .mark.running { color: var(--trained); }
.mark.failed { color: var(--bad); } .mark.waiting { color: var(--muted); }
.tools { display: flex; flex-wrap: wrap; gap: 8px 16px; align-items: center; margin: 8px 0 10px; font-size: 14px; }
.tools[hidden] { display: none; }
.tools label { color: var(--muted); display: flex; gap: 6px; align-items: center; }
.tools input, .tools select, .copy { font: inherit; color: var(--ink); background: var(--paper);
  border: 1px solid var(--grid); border-radius: 6px; padding: 4px 8px; max-width: 60vw; }
.tools output { color: var(--muted); }
.copy { float: right; margin: 8px 0 0 8px; cursor: pointer; }
:is(button, select, input, summary, a, .tall):focus-visible { outline: 2px solid var(--trained); outline-offset: 1px; }
.tall { max-height: 78vh; overflow: auto; border-bottom: 1px solid var(--grid); }
.board thead th { position: sticky; top: 0; z-index: 2; background: var(--paper); padding-top: 4px; white-space: nowrap;
  border-bottom: 2px solid var(--grid); }
.board th button { all: unset; cursor: pointer; font: inherit; color: inherit; }
.board th button:focus-visible { outline: 2px solid var(--trained); outline-offset: 2px; border-radius: 2px; }
.board th button::after { content: "\\2195"; opacity: .35; margin-left: 3px; font-size: 11px; }
.board th[aria-sort="ascending"] button::after { content: "\\25b2"; opacity: 1; }
.board th[aria-sort="descending"] button::after { content: "\\25bc"; opacity: 1; }
.board td { padding-top: 4px; padding-bottom: 4px; }
.board tr > :first-child { padding-right: 10px; }
.board th.name { left: 0; z-index: 3; }
.board td.name { position: sticky; left: 0; z-index: 1; background: var(--paper);
  background-clip: padding-box; min-width: 96px; }
.board code { white-space: nowrap; }
.board tfoot { position: sticky; bottom: 0; z-index: 2; }
.board tfoot td, .board tfoot td.name { background: var(--panel); color: var(--muted); font-weight: 600; }
.board tr.lit td { background: var(--lit); }
.board .name { white-space: nowrap; } .board .taken { min-width: 0; overflow-wrap: normal; }
.board .spread { font-size: 12.5px; font-weight: 400; }
.nowrap { white-space: nowrap; }
wbr { display: none; }
.why { color: var(--muted); font-size: 12.5px; max-width: 260px; min-width: 190px; overflow-wrap: anywhere; }
.badge { display: inline-block; min-width: 22px; padding: 0 6px; border-radius: 11px; text-align: center;
  font-weight: 700; font-size: 13px; line-height: 22px; color: var(--paper); background: var(--rest); }
.badge.best1 { background: var(--best1); } .badge.best2 { background: var(--best2); }
.badge.best3 { background: var(--best3); }
.drawing { overflow-x: auto; overflow-y: hidden; touch-action: pan-x pan-y; }
.drawing[hidden] { display: none; }
.drawing > svg { min-width: 420px; } :is(#curves, #parallel, #lineage) .drawing > svg { min-width: 720px; }
.reference { stroke-width: 1.6; stroke-dasharray: 7 4; }
.reference.pixels { stroke: var(--pixels); } .reference.untrained { stroke: var(--untrained); }
.pole { stroke: var(--muted); stroke-width: 1; }
.curve { fill: none; stroke: var(--rest); stroke-width: 1.1; stroke-linejoin: round; }
.curve.rest { opacity: .55; }
.curve.best1, .curve.best2, .curve.best3 { stroke-width: 2.4; }
.curve.best1, .reach.best1 { stroke: var(--best1); } .curve.best2, .reach.best2 { stroke: var(--best2); }
.curve.best3, .reach.best3 { stroke: var(--best3); }
.curve.best2 { stroke-dasharray: 8 3; } .curve.best3 { stroke-dasharray: 3 2.5; }
.end, .dot { fill: var(--rest); } .dot.rest { fill-opacity: .8; stroke: var(--paper); stroke-width: 1; }
.end.best1, .dot.best1 { fill: var(--best1); } .end.best2, .dot.best2 { fill: var(--best2); }
.end.best3, .dot.best3 { fill: var(--best3); }
.reach { stroke: var(--rest); stroke-width: 1.3; opacity: .7; }
.front { fill: none; stroke: var(--muted); stroke-width: 1.4; stroke-dasharray: 5 4; }
.thread { fill: none; stroke-width: 1.8; opacity: .85; }
.stretch { stroke: var(--muted); stroke-width: .6; }
.copied { fill: none; stroke: var(--ink); stroke-width: 1.3; } .arrow { fill: var(--ink); }
svg [data-row].hidden { display: none; }
svg.dimmed > [data-row] { opacity: .18; } svg.dimmed > .over { opacity: 1; pointer-events: none; }
.over.curve, .over.thread { stroke-width: 3.2; }
.over.rest:is(.curve, .reach) { stroke: var(--ink); } .over.rest:is(.dot, .end) { fill: var(--ink); }
.keys { display: block; margin-bottom: 4px; }
.keys > span { margin-right: 16px; white-space: nowrap; } .keys svg { display: inline; width: 28px; }
#tip { position: fixed; z-index: 9; max-width: min(330px, 92vw); padding: 7px 10px; border-radius: 7px; font-size: 13px;
  line-height: 1.35; white-space: pre-line;
  color: var(--ink); background: var(--panel); border: 1px solid var(--grid); pointer-events: none;
  box-shadow: 0 3px 12px rgb(0 0 0 / .22); overflow-wrap: anywhere; }
#tip[hidden] { display: none; } #tip::first-line { font-weight: 700; }
.beside { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 300px), 1fr)); gap: 20px 26px; }
.beside img { max-width: 620px; }
.beside h3, #configurations summary { display: flex; gap: 8px; align-items: center; flex-wrap: wrap; }
#importance table { max-width: 760px; }
@media (max-width: 560px) {
  .card:has(.lead) { grid-column: 1 / -1; }
  wbr { display: inline; }
  .board .name { white-space: normal; overflow-wrap: anywhere; min-width: 84px; max-width: 116px; }
  .why { min-width: 120px; } }
"""
