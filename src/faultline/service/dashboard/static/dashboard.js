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
  if (document.body.classList.contains("away")) return; // nobody knows
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

const PAUSE_MS = 700; // between two looks at a page
const TICK_MS = 5000; // what changes without being announced: silence, progress, ages
const due = new Set(); // the names of parts that have changed
let timer = null;
let seen = Date.now(); // when the server was last heard of

// A form's own .id is its field of that name.
const nameOf = (part) => part.getAttribute("id");

// Nothing moves under somebody's hand; what is due is put in place when the hand is gone.
const isBusy = (part) =>
  (part.contains(document.activeElement) && document.activeElement.matches("input:not(.moment), select")) ||
  (nameOf(part) === "jobs" && (part.matches(":hover") || part.querySelector("input[name=id]:checked")));

function changed(kind) {
  for (const part of document.querySelectorAll("[data-live]")) {
    if (!kind || part.dataset.live.split(" ").includes(kind)) due.add(nameOf(part));
  }
  later();
}

function later() {
  if (!timer && due.size && !document.hidden) timer = setTimeout(refresh, PAUSE_MS);
}

// One question for all parts that have changed.
async function refresh(force = false) {
  clearTimeout(timer);
  try {
    const address = new URL(location.href);
    address.searchParams.set("part", "yes");
    const answer = await fetch(address, { headers: { Accept: "text/html" } });
    if (answer.redirected) return void location.reload();
    heard();
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!answer.ok) return void complain(`Nothing can be seen just now: ${fresh.body.textContent.trim()}`);
    for (const name of [...due]) put(name, fresh, force);
    countDown();
  } catch {
    lostContact();
  } finally {
    timer = null;
    setTimeout(later, PAUSE_MS); // what was held back
  }
}

function put(name, page, force) {
  const fresh = page.getElementById(name);
  const shown = document.getElementById(name);
  if (shown && !force && isBusy(shown)) return;
  due.delete(name);
  if (!fresh || !shown) return;
  if (!force) keepChoices(shown, fresh);
  keepOpen(shown, fresh);
  localTimes(fresh);
  labels(fresh);
  moments(fresh);
  htmx.swap({ target: shown, text: fresh.outerHTML, swap: "outerMorph" });
}

function keepChoices(shown, fresh) {
  for (const box of shown.querySelectorAll("input[name=id]:checked")) {
    fresh.querySelector(`input[value="${CSS.escape(box.value)}"]`)?.setAttribute("checked", "");
  }
}

function keepOpen(shown, fresh) {
  const open = [...shown.querySelectorAll("details")].map((one) => one.open);
  [...fresh.querySelectorAll("details")].forEach((one, n) => { if (open[n]) one.setAttribute("open", ""); });
}

// ── the stream ───────────────────────────────────────────────────────────────────────────────────

const KINDS = ["queues", "leases", "workers", "risk", "throughput", "refusal"];
let stream = null;
let again = 1000;

// A browser has few connections for one host: a page that nobody sees has none.
function listen() {
  if (document.hidden || stream) return;
  stream = new EventSource(`${root}/api/stream`);
  stream.onopen = () => { again = 1000; heard(); changed(); };
  stream.onerror = () => {
    lostContact();
    if (stream?.readyState !== EventSource.CLOSED) return; // the browser tries again by itself
    hush();
    setTimeout(askAgain, again);
    again = Math.min(again * 2, 15000);
  };
  for (const kind of KINDS) {
    stream.addEventListener(kind, () => { heard(); changed(kind); if (kind === "throughput") draw(); });
  }
  stream.addEventListener("trouble", (event) => {
    complain(`Nothing can be seen just now: ${JSON.parse(event.data).detail}`);
  });
}

// The answer was no stream: perhaps the token is another one by now, which a page's redirect shows.
function askAgain() {
  changed();
  listen();
}

function hush() {
  stream?.close();
  stream = null;
}

function heard() {
  seen = Date.now();
  trouble.hidden = true;
  document.body.classList.remove("away");
  live.textContent = "live";
  live.classList.add("on");
}

function lostContact() {
  live.textContent = "reconnecting";
  live.classList.remove("on");
  const seconds = Math.round((Date.now() - seen) / 1000);
  if (seconds < 3) return;
  document.body.classList.add("away");
  complain(`No contact with the service for ${seconds} s: what is shown is as old.`);
}

function complain(words) {
  trouble.textContent = words;
  trouble.hidden = false;
}

// ── the chart ────────────────────────────────────────────────────────────────────────────────────

let chart = null;
const LINES = [["enqueued", "--bar"], ["ended", "--bar-good"], ["refused", "--bar-bad"]];

async function draw() {
  const place = document.getElementById("chart");
  if (!place || document.hidden) return;
  const answer = await fetch(`${root}/dashboard/series`).catch(() => null);
  if (!answer?.ok) return;
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
  await act(form.action, fields);
  changed();
  refresh(true);
});

async function act(address, fields) {
  let words;
  try {
    const answer = await fetch(address, { method: "POST", body: fields });
    if (answer.ok) return void (said.innerHTML = await answer.text());
    words = await answer.json().then((body) => body.detail, () => `the service answered ${answer.status}`);
  } catch {
    words = "the service cannot be reached; nothing is known of what became of this";
  }
  const line = document.createElement("p");
  line.className = "trouble";
  line.textContent = `Not done: ${words}`;
  said.replaceChildren(line);
}

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
for (const figure of document.querySelectorAll(".timeline")) figure.scrollLeft = figure.scrollWidth; // its end
setInterval(countDown, 200);
setInterval(() => { if (!document.hidden) ["workers", "leases"].forEach(changed); }, TICK_MS);
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return void hush();
  listen();
  changed();
  draw();
});
addEventListener("pagehide", hush);
addEventListener("pageshow", (event) => { if (event.persisted) listen(); });
listen();
draw();
