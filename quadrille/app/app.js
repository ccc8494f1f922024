// Puts answers into their places, draws their charts, and moves the charts of time.
const views = {};
const wholes = {};
const latest = {};

async function show(place, html, entries, prefix) {
  const element = document.getElementById(place);
  if (!element) return;
  const mine = (latest[place] = (latest[place] || 0) + 1);
  element.querySelectorAll(".chart").forEach((chart) => {
    const number = chart.id.slice("chart-".length);
    if (views[number]) views[number].finalize();
    delete views[number];
    delete wholes[number];
  });
  element.style.minHeight = element.offsetHeight + "px";
  element.innerHTML = html;
  element.dataset.drawn = "";
  for (let number = 0; number < entries.length; number += 1) {
    const chart = document.getElementById("chart-" + prefix + number);
    if (mine !== latest[place] || !chart) return;
    try {
      views[prefix + number] = await drawChart(chart, entries[number].spec);
      chart.dataset.zoom = entries[number].zoom;
    } catch (error) {
      chart.textContent = "This chart could not be drawn; the table below has its values.";
      console.error(error);
    }
    await new Promise((resolve) => setTimeout(resolve, 0));
  }
  element.style.minHeight = "";
  element.dataset.drawn = entries.length;
}

// Says below the last verdict what is under way; the next answer replaces it.
function stage(place, line) {
  const element = document.getElementById(place);
  if (!element) return;
  element.querySelector(".stage")?.remove();
  const text = document.createElement("p");
  text.className = "stage";
  text.textContent = line;
  element.querySelector(".verdict")?.after(text);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-zoom]");
  if (!button || !views[button.dataset.chart]) return;
  const number = button.dataset.chart;
  const view = views[number];
  if (!(number in wholes)) wholes[number] = view.scale("x").domain().slice();
  zoomView(view, document.getElementById("chart-" + number).dataset.zoom, wholes[number], button.dataset.zoom);
});
document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-fold]");
  if (!button) return;
  const isOpen = document.getElementById(button.dataset.fold).classList.toggle("unfolded");
  button.setAttribute("aria-expanded", isOpen);
});
window.quadrille = { show, stage };
