"use strict";
const entries = JSON.parse(document.getElementById("specs").textContent);
const views = {};
const ink = "var(--ink)";
const config = {
  background: null,
  font: "system-ui, sans-serif",
  axis: { labelColor: ink, titleColor: ink, gridColor: "var(--line)", domainColor: "var(--soft)", tickColor: "var(--soft)", titleFontWeight: "normal", labelFontSize: 12, titleFontSize: 12, tickCount: { expr: "max(3, floor(width / 90))" } },
  legend: { labelColor: ink, titleColor: ink, labelFontSize: 12, titleFontSize: 12, symbolBaseFillColor: ink, symbolBaseStrokeColor: ink },
  title: { color: ink },
  text: { color: ink },
  view: { stroke: null },
};

// as many columns as fit beside each other; a letter is about 7 pixels wide, a symbol 30
function legendColumns(value, width) {
  let longest = 1;
  const visit = (node) => {
    if (node === null || typeof node !== "object") return;
    if (Array.isArray(node.domain)) longest = Math.max(longest, ...node.domain.map((name) => String(name).length));
    Object.values(node).forEach(visit);
  };
  visit(value);
  return Math.max(1, Math.floor((width - 160) / (Math.min(300, 7 * longest) + 30)));
}

async function draw(number) {
  const place = document.getElementById("chart-" + number);
  const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  try {
    const spec = entries[number].spec;
    const layout = { bottom: { anchor: "start", direction: place.clientWidth < 600 ? "vertical" : "horizontal", margin: 12 } };
    const limit = Math.min(300, place.clientWidth - 190);
    const legend = { ...config.legend, labelLimit: limit, columns: legendColumns(spec, place.clientWidth), layout: layout };
    const result = await vegaEmbed(place, spec, {
      mode: "vega-lite", logLevel: 1, renderer: "svg", actions: false, config: { ...config, legend: legend }, tooltip: { theme: dark ? "dark" : "light" },
    });
    views[number] = result.view;
    place.querySelectorAll("select, input").forEach((input) => {
      const name = input.closest(".vega-bind").querySelector(".vega-bind-name");
      input.setAttribute("aria-label", name ? name.textContent.trim() : "filter");
    });
  } catch (error) {
    place.textContent = "This chart could not be drawn; the table below has its values.";
    console.error(error);
  }
}

async function drawAll() {
  for (let number = 0; number < entries.length; number += 1) {
    await draw(number);
    await new Promise((resolve) => setTimeout(resolve, 0));
  }
  document.body.dataset.drawn = Object.keys(views).length;
}

const wholes = {};
function zoom(number, action) {
  const view = views[number];
  if (!view) return;
  const signal = entries[number].zoom;
  if (!(number in wholes)) wholes[number] = view.scale("x").domain().slice();
  const whole = wholes[number];
  const [low, high] = view.scale("x").domain();
  const width = high - low;
  const moves = {
    in: [low + width / 4, high - width / 4], out: [low - width / 2, high + width / 2],
    left: [low - width / 2, high - width / 2], right: [low + width / 2, high + width / 2], all: whole,
  };
  let [from, to] = moves[action];
  if (to - from >= whole[1] - whole[0]) [from, to] = whole;
  if (from < whole[0]) [from, to] = [whole[0], whole[0] + (to - from)];
  if (to > whole[1]) [from, to] = [whole[1] - (to - from), whole[1]];
  view.signal(signal, [from, to]).runAsync();
}
document.querySelectorAll("button[data-zoom]").forEach((button) => {
  button.addEventListener("click", () => zoom(button.dataset.chart, button.dataset.zoom));
});
drawAll();
