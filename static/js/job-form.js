// The new-job form: presets, an estimate that follows the numbers, and limits of the chosen base model.
import { element, pageData } from "./dom.js";

const form = document.getElementById("job-form");
const presets = pageData("presets");
const rowCounts = pageData("row-counts");
const whole = new Intl.NumberFormat("en");

function value(name) {
  return Number(form.elements[name].value) || 0;
}

function show(name, text) {
  form.querySelector(`[data-estimate="${name}"]`).textContent = text;
}

function hints(rows, baseModel) {
  const found = [];
  if (rows && rows.held_out === 0) {
    found.push("This dataset version has no held-out rows, so the job cannot measure what it has learnt.");
  }
  if (baseModel && value("lora__rank") > Number(baseModel.dataset.maxRank)) {
    found.push(`The LoRA rank is above ${baseModel.dataset.maxRank}, the limit of this base model.`);
  }
  if (baseModel && value("sampling__max_tokens") >= Number(baseModel.dataset.context)) {
    found.push(`The longest completion leaves no room for a prompt: the context has ${baseModel.dataset.context} tokens.`);
  }
  return found;
}

function update() {
  const perStep = value("training__prompts_per_step") * value("training__group_size");
  const total = perStep * value("training__steps");
  const rows = rowCounts[form.elements.dataset_version.value];
  const baseModel = form.querySelector('input[name="base_model"]:checked');
  show("per-step", whole.format(perStep));
  show("total", whole.format(total));
  show("tokens", whole.format(total * value("sampling__max_tokens")));
  const drawn = value("training__prompts_per_step") * value("training__steps");
  show("passes", rows ? (drawn / rows.train).toFixed(drawn < rows.train ? 2 : 1) : "–");
  const items = hints(rows, baseModel).map((text) => element("li", {}, text));
  document.getElementById("hints").replaceChildren(...items);
  for (const button of form.querySelectorAll("[data-preset]")) {
    const chosen = Object.entries(presets[button.dataset.preset]).every(([name, number]) => value(name) === number);
    button.setAttribute("aria-pressed", String(chosen));
  }
}

form.addEventListener("click", (event) => {
  const button = event.target.closest("[data-preset]");
  if (!button) return;
  for (const [name, number] of Object.entries(presets[button.dataset.preset])) form.elements[name].value = number;
  update();
});
form.addEventListener("input", update);
update();
