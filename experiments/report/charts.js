"use strict";
// Draws Vega-Lite charts in the colours of the page, and moves their axis of time; the report and the app share it.
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

// width of the longest name of a legend; a letter is about 7 pixels wide
function longestName(value) {
  let longest = 1;
  const visit = (node) => {
    if (node === null || typeof node !== "object") return;
    if (Array.isArray(node.domain)) longest = Math.max(longest, ...node.domain.map((name) => String(name).length));
    Object.values(node).forEach(visit);
  };
  visit(value);
  return 7 * longest;
}

// The legend is below the chart.  Its columns are as many as fit beside each other; a symbol is 30 pixels wide.  Where
// its names do not fit below the bars, it begins below the names of the rows.
function legendConfig(spec, width) {
  const longest = longestName(spec), room = width - 190, isWide = longest > room;
  const limit = Math.min(isWide && width < 600 ? width - 50 : room, 300);
  const direction = width < 600 ? "vertical" : "horizontal";
  return {
    ...config.legend,
    labelLimit: limit,
    columns: Math.max(1, Math.floor((room + 30) / (Math.min(300, longest) + 30))),
    layout: { bottom: { anchor: isWide && width < 600 ? "end" : "start", direction: direction, margin: 12 } },
  };
}

async function drawChart(place, spec) {
  const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  const legend = legendConfig(spec, place.clientWidth);
  const result = await vegaEmbed(place, spec, {
    mode: "vega-lite", logLevel: 1, renderer: "svg", actions: false, config: { ...config, legend: legend }, tooltip: { theme: dark ? "dark" : "light" },
  });
  place.querySelectorAll("select, input").forEach((input) => {
    const name = input.closest(".vega-bind").querySelector(".vega-bind-name");
    input.setAttribute("aria-label", name ? name.textContent.trim() : "filter");
  });
  return result.view;
}

// the view's visible range of x after a button; `whole` is the range that shows everything
function zoomView(view, signal, whole, action) {
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
