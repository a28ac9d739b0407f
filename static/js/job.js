// The job page: curves from the events as they come; the other parts are fetched again when one concerns them.
import { Chart } from "./charts.js";
import { pageData } from "./dom.js";
import { LiveConnection } from "./live.js";

const MAX_GROUPS = 40;
const page = document.getElementById("job");

// --- curves -----------------------------------------------------------------------------------------------------

const points = new Map(); // step -> metrics and held-out results

function addStep({ step, metrics }) {
  points.set(step, { ...points.get(step), ...metrics });
}

function addEvaluation({ step, accuracy }) {
  points.set(step, { ...points.get(step), held_out: accuracy });
}

const charts = [
  new Chart(document.getElementById("chart-reward"), {
    range: [0, 1],
    height: 260,
    series: [
      { key: "reward_mean", label: "Mean reward", token: "--chart-1" },
      { key: "accuracy", label: "Accuracy", token: "--chart-2", shape: "dashed" },
      { key: "held_out", label: "Held-out accuracy", token: "--chart-3", shape: "points" },
    ],
  }),
  new Chart(document.getElementById("chart-entropy"), {
    height: 130,
    series: [{ key: "entropy", label: "Entropy", token: "--chart-4" }],
  }),
  new Chart(document.getElementById("chart-grad"), {
    height: 130,
    series: [{ key: "grad_norm", label: "Gradient norm", token: "--chart-2" }],
  }),
  new Chart(document.getElementById("chart-length"), {
    height: 130,
    series: [{ key: "completion_tokens_mean", label: "Tokens", token: "--chart-3", digits: 1 }],
  }),
];

function drawCurves() {
  for (const chart of charts) chart.setPoints(points);
}

const curve = pageData("curve");
curve.steps.forEach(addStep);
curve.evaluations.forEach(addEvaluation);
drawCurves();

// --- news -------------------------------------------------------------------------------------------------------

const PARTS_BY_TYPE = {
  status: ["messages", "adapters"],
  notice: ["messages"],
  evaluation: ["messages"],
  adapter: ["adapters", "messages"],
  adapter_removed: ["adapters"],
  rollout: ["rollout"],
};
const PARTS = new Set(Object.values(PARTS_BY_TYPE).flat());
let newestRollout = 0;

function refresh(part) {
  document.body.dispatchEvent(new CustomEvent(`live:${part}`));
}

function applyFrame({ events, job }) {
  const parts = new Set(["summary"]);
  for (const { seq, type, payload } of events) {
    if (type === "step") addStep(payload);
    if (type === "evaluation") addEvaluation(payload);
    if (type === "rollout") newestRollout = seq;
    for (const part of PARTS_BY_TYPE[type] ?? []) parts.add(part);
  }
  if (events.some(({ type }) => type === "step" || type === "evaluation")) drawCurves();
  parts.forEach(refresh);
  if (job) document.title = `${job.finished ? job.status_label : `${job.step}/${job.steps}`} · ${page.dataset.name} · MARLaaS`;
}

// The marker above the rollouts is replaced by each answer; news that came meanwhile are asked for again.
document.addEventListener("htmx:after:swap", () => {
  const marker = document.getElementById("rollouts-news");
  if (Number(marker.dataset.after) < newestRollout) refresh("rollout");
  const groups = document.querySelectorAll("#rollouts > .group");
  if (groups.length) document.querySelector("[data-rollouts-empty]")?.remove();
  [...groups].slice(MAX_GROUPS).forEach((group) => group.remove());
});

const STATE_TEXT = {
  connecting: "Connecting",
  live: "Live",
  reconnecting: "Reconnecting",
  offline: "Offline, trying again",
  closed: "Not connected: reload the page",
};

if (page.dataset.finished === "false") {
  const indicator = document.querySelector("[data-live-state]");
  const connection = new LiveConnection(page.dataset.socket, Number(page.dataset.after));
  connection.addEventListener("frame", ({ detail }) => applyFrame(detail));
  let reconnected = false;
  connection.addEventListener("state", ({ detail }) => {
    if (detail === "live" && reconnected) PARTS.forEach(refresh); // a part may have failed to load meanwhile
    reconnected = detail !== "connecting";
    indicator.dataset.liveState = detail;
    indicator.querySelector(".live__text").textContent = STATE_TEXT[detail];
  });
  connection.open();
}
