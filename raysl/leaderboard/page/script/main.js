// Sets everything up, once the page is there.

function copyButtons() {
  for (const button of document.querySelectorAll(".copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const text = button.parentElement.querySelector("pre");
      try {
        await navigator.clipboard.writeText(text.textContent);
        button.textContent = "Copied";
      } catch (error) {
        getSelection().selectAllChildren(text); // a file may not write the clipboard: it is then one key away
        button.textContent = "Selected";
      }
    });
  }
}

for (const tools of document.querySelectorAll(".tools")) tools.hidden = false;
chart("curves", drawCurves);
chart("parallel", drawParallel);
for (const name of Object.keys(DATA.scatters)) chart(name, (...told) => drawScatter(name, ...told));
chart("lineage", drawLineage);
for (const name of ["curve-metric", "curve-axis", ...Object.keys(DATA.scatters).map((one) => one + "-x")]) field(name, redraw);
const curves = document.getElementById("curves-chart");
if (curves) curveLegend(curves);
setUpTable();
redraw();
copyButtons();
history.scrollRestoration = "manual";
comeBack();
addEventListener("pagehide", keep);
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === width) return; // a phone that hides its address bar
  width = innerWidth;
  redraw();
});
reloadWhileItRuns();
document.documentElement.dataset.ready = "yes";
