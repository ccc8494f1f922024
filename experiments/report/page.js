"use strict";
const entries = JSON.parse(document.getElementById("specs").textContent);
const views = {};
const wholes = {};

async function draw(number) {
  const place = document.getElementById("chart-" + number);
  try {
    views[number] = await drawChart(place, entries[number].spec);
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

function zoom(number, action) {
  const view = views[number];
  if (!view) return;
  if (!(number in wholes)) wholes[number] = view.scale("x").domain().slice();
  zoomView(view, entries[number].zoom, wholes[number], action);
}
document.querySelectorAll("button[data-zoom]").forEach((button) => {
  button.addEventListener("click", () => zoom(button.dataset.chart, button.dataset.zoom));
});
drawAll();
