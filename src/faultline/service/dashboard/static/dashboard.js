// Keeps a page fresh: parts marked data-live are asked for again when the stream says that
// something has changed; countdowns go on in between, and times are written for the viewer.
"use strict";

const root = document.body.dataset.root;
const live = document.getElementById("live");
const trouble = document.getElementById("trouble");
const said = document.getElementById("said");

// ── times ────────────────────────────────────────────────────────────────────────────────────────

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });

function localTimes(within) {
  for (const time of within.querySelectorAll("time")) {
    const moment = new Date(time.dateTime);
    const near = Math.abs(Date.now() - moment) < 12 * 3600e3;
    time.textContent = (near ? clock : day).format(moment);
  }
}

// On a phone a row is a card, and each cell says what it is.
function labels(within) {
  for (const table of within.querySelectorAll("table")) {
    const heads = [...table.querySelectorAll("thead th")].map((head) => head.textContent);
    for (const row of table.querySelectorAll("tbody tr")) {
      [...row.cells].forEach((cell, n) => { if (heads[n]) cell.dataset.label = heads[n]; });
    }
  }
}

// What was left when the server answered, as a moment of this clock: it may be wrong by itself.
function moments(within) {
  for (const shown of within.querySelectorAll("[data-left]")) {
    shown.dataset.until = Date.now() / 1000 + Number(shown.dataset.left);
  }
}

function countDown() {
  const now = Date.now() / 1000;
  for (const shown of document.querySelectorAll("[data-until]")) {
    const left = shown.dataset.until - now;
    shown.classList.toggle("gone", left <= 0);
    shown.querySelector("meter").value = Math.max(left, 0);
    shown.querySelector(".left").textContent =
      left > 0 ? `${left.toFixed(1)} s` : `expired ${Math.round(-left)} s ago`;
  }
}

// ── parts that are kept fresh ────────────────────────────────────────────────────────────────────

const asking = new Set();
const stale = new Set();

async function refresh(part) {
  const id = nameOf(part);
  if (asking.has(id)) return void stale.add(id);
  asking.add(id);
  const address = new URL(location.href);
  address.searchParams.set("part", id);
  try {
    const answer = await fetch(address, { headers: { Accept: "text/html" } });
    if (answer.redirected) return void location.reload();
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById(id);
    const shown = document.getElementById(id);
    if (!fresh || !shown || isBusy(shown)) return;
    keepChoices(shown, fresh);
    localTimes(fresh);
    labels(fresh);
    moments(fresh);
    htmx.swap({ target: shown, text: fresh.outerHTML, swap: "outerMorph" });
    countDown();
  } finally {
    asking.delete(id);
    if (stale.delete(id)) later(id);
  }
}

// A form's own .id is its field of that name.
const nameOf = (part) => part.getAttribute("id");

// Nothing moves under somebody's hand.
const isBusy = (part) =>
  (part.contains(document.activeElement) && document.activeElement.matches("input, select")) ||
  (nameOf(part) === "jobs" && (part.matches(":hover") || part.querySelector("input[name=id]:checked")));

function keepChoices(shown, fresh) {
  for (const box of shown.querySelectorAll("input[name=id]:checked")) {
    fresh.querySelector(`input[value="${CSS.escape(box.value)}"]`)?.setAttribute("checked", "");
  }
}

const waiting = new Map();

function later(id) {
  if (waiting.has(id)) return;
  waiting.set(id, setTimeout(() => {
    waiting.delete(id);
    const part = document.getElementById(id);
    if (part && !document.hidden) refresh(part);
  }, 250));
}

function changed(kind) {
  for (const part of document.querySelectorAll("[data-live]")) {
    if (!kind || part.dataset.live.split(" ").includes(kind)) later(nameOf(part));
  }
}

// ── the stream ───────────────────────────────────────────────────────────────────────────────────

function listen() {
  const stream = new EventSource(`${root}/api/stream`);
  stream.onopen = () => showLive("live");
  stream.onerror = () => showLive("reconnecting");
  for (const kind of ["queues", "leases", "workers", "risk", "throughput", "refusal"]) {
    stream.addEventListener(kind, () => { trouble.hidden = true; changed(kind); if (kind === "throughput") draw(); });
  }
  stream.addEventListener("trouble", (event) => {
    trouble.textContent = `Nothing can be seen just now: ${JSON.parse(event.data).detail}`;
    trouble.hidden = false;
  });
  addEventListener("pagehide", () => stream.close());
}

function showLive(words) {
  live.textContent = words;
  live.classList.toggle("on", words === "live");
}

// ── the chart ────────────────────────────────────────────────────────────────────────────────────

let chart = null;
const LINES = [["enqueued", "--bar"], ["ended", "--bar-good"], ["refused", "--bar-bad"]];

async function draw() {
  const place = document.getElementById("chart");
  if (!place || document.hidden) return;
  const answer = await fetch(`${root}/dashboard/series`);
  if (!answer.ok) return;
  const series = await answer.json();
  const data = [series.at, ...LINES.map(([name]) => series[name])];
  if (chart) return void chart.setData(data);
  const style = getComputedStyle(document.documentElement);
  const axis = { stroke: style.getPropertyValue("--dim"), grid: { stroke: style.getPropertyValue("--line") } };
  chart = new uPlot({
    width: place.clientWidth, height: 170, legend: { live: false }, cursor: { show: false }, scales: { y: { range: (_, low, high) => [0, Math.max(high * 1.1, 1)] } },
    axes: [axis, { ...axis, size: 44 }],
    series: [{}, ...LINES.map(([name, colour]) => ({ label: `${name}/s`, stroke: style.getPropertyValue(colour), width: 1.6, value: (_, v) => (v == null ? "–" : v.toFixed(1)) }))],
  }, data, place);
  new ResizeObserver(() => chart?.setSize({ width: place.clientWidth, height: 170 })).observe(place);
}

// ── the timeline ─────────────────────────────────────────────────────────────────────────────────

function tell(figure, index, x) {
  const svg = figure.querySelector("svg");
  const stages = JSON.parse(svg.dataset.stages);
  const stage = stages[index];
  const cursor = svg.querySelector(".cursor");
  cursor.setAttribute("x1", x ?? stage.x);
  cursor.setAttribute("x2", x ?? stage.x);
  cursor.setAttribute("visibility", "visible");
  figure.querySelector("output").textContent = `${stage.at}: ${stage.words}`;
  figure.querySelector(".moment").value = index;
}

document.addEventListener("pointermove", (event) => {
  const svg = event.target.closest?.(".timeline svg");
  if (!svg) return;
  const box = svg.getBoundingClientRect();
  const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
  const stages = JSON.parse(svg.dataset.stages);
  let index = stages.findLastIndex((stage) => stage.x <= x);
  tell(svg.closest("figure"), Math.max(index, 0), x);
});
document.addEventListener("input", (event) => {
  if (event.target.matches(".moment")) tell(event.target.closest("figure"), Number(event.target.value));
});

// ── actions ──────────────────────────────────────────────────────────────────────────────────────

const dialog = document.getElementById("ask");

function ask(question) {
  document.getElementById("question").textContent = question;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((answer) => {
    dialog.addEventListener("close", () => answer(dialog.returnValue === "yes"), { once: true });
  });
}

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.matches("[data-act]")) return;
  event.preventDefault();
  const button = event.submitter;
  const question = button?.dataset.ask || form.dataset.ask;
  if (question && !(await ask(question))) return;
  const fields = new URLSearchParams(new FormData(form, button));
  if (button && "all" in button.dataset) { fields.delete("id"); fields.set("all", "yes"); }
  const answer = await fetch(form.action, { method: "POST", body: fields });
  if (answer.ok) said.innerHTML = await answer.text();
  else { said.innerHTML = ""; trouble.textContent = (await answer.json()).detail; trouble.hidden = false; }
  changed();
});

document.addEventListener("click", (event) => {
  if (event.target.matches(".close")) event.target.parentElement.remove();
  if (event.target.matches("[data-all-of]")) {
    for (const box of document.getElementsByName(event.target.dataset.allOf)) box.checked = event.target.checked;
  }
});

document.getElementById("theme").addEventListener("click", () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme || (dark ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("faultline-theme", next);
  chart?.destroy();
  chart = null;
  draw();
});

localTimes(document);
labels(document);
moments(document);
setInterval(countDown, 200);
document.addEventListener("visibilitychange", () => { if (!document.hidden) { changed(); draw(); } });
listen();
draw();
