// The job page: curves from the events as they come; the other parts are fetched again when one concerns them.
import { initChartBar } from "./chart-bar.js";
import { pageData } from "./dom.js";
import { JobCharts } from "./job-charts.js";
import { LiveConnection } from "./live.js";

const MAX_GROUPS = 40;
const page = document.getElementById("job");

// --- curves -----------------------------------------------------------------------------------------------------

const curve = pageData("curve");
const curves = new JobCharts(curve.start);
curve.steps.forEach((step) => curves.addStep(step));
curve.evaluations.forEach((evaluation) => curves.addEvaluation(evaluation));
curves.draw();
initChartBar(curves.charts, curve.slug);

// --- news -------------------------------------------------------------------------------------------------------

const PARTS_BY_TYPE = {
  status: ["messages", "adapters"],
  notice: ["messages", "findings"],
  reward_error: ["messages", "findings"],
  step: ["timeline"],
  evaluation: ["messages", "adapters"],
  adapter: ["adapters", "messages"],
  adapter_removed: ["adapters"],
  control: ["messages"],
  rollout: ["rollout"],
};
const PARTS = new Set(Object.values(PARTS_BY_TYPE).flat());
let newestRollout = 0;

function refresh(part) {
  document.body.dispatchEvent(new CustomEvent(`live:${part}`));
}

function applyFrame({ events, job }) {
  const parts = new Set(["summary"]);
  for (const { seq, type, time, payload } of events) {
    if (type === "step") curves.addStep({ ...payload, time });
    if (type === "evaluation") curves.addEvaluation({ ...payload, time });
    if (type === "rollout") newestRollout = seq;
    for (const part of PARTS_BY_TYPE[type] ?? []) parts.add(part);
  }
  if (events.some(({ type }) => type === "step" || type === "evaluation")) curves.draw();
  parts.forEach(refresh);
  if (job) document.title = `${job.finished ? job.status_label : `${job.step}/${job.steps}`} · ${page.dataset.name} · MARLaaS`;
}

// The marker above the rollouts is replaced by each answer; news that came meanwhile are asked for again.
document.addEventListener("htmx:after:swap", () => {
  const marker = document.getElementById("rollouts-news");
  if (Number(marker.dataset.after) < newestRollout) refresh("rollout");
  const groups = [...document.querySelectorAll("#rollouts > .group")];
  if (groups.length) document.querySelector("[data-rollouts-empty]")?.remove();
  groups.slice(MAX_GROUPS).forEach((group) => group.remove());
  if (!marker.dataset.whole) return;
  // More came than is fetched at once: what is below would read as if it had come right before. What is read stays.
  groups.slice(Number(marker.dataset.whole)).forEach((group) => group.open || group.remove());
  delete marker.dataset.whole;
});

if (page.dataset.finished === "false") {
  const connection = new LiveConnection(page.dataset.socket, Number(page.dataset.after));
  connection.addEventListener("frame", ({ detail }) => applyFrame(detail));
  let reconnected = false;
  connection.addEventListener("state", ({ detail }) => {
    if (detail === "live" && reconnected) PARTS.forEach(refresh); // a part may have failed to load meanwhile
    reconnected = detail !== "connecting";
  });
  connection.open();
}
