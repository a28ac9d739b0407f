// The new-job form: one step at a time, settings shown where they count, presets, and what the server says of it all:
// the estimate, the checks, the review, the same by API, and what is wrong at which field.
import { element, icon, pageData } from "./dom.js";
import { clearDraft, restoreDraft, saveDraft } from "./job-draft.js";

const form = document.getElementById("job-form");
const presets = pageData("presets");
const when = pageData("when");
const steps = [...form.querySelectorAll("[data-step]")];
const state = document.getElementById("preview-state");
const touched = new Set();
let current = 1;
let seen = 1; // the farthest step reached: errors up to there are shown
let errors = {};
let asked;

// --- settings that count only sometimes ------------------------------------------------------------------------------

function values(name) {
  return new FormData(form).getAll(name);
}

function rowsFrom() {
  return values("rows")[0] ?? "dataset";
}

function counts(rule) {
  if (rule.name === "environment__type" && rowsFrom() !== "dataset") return false;
  const given = values(rule.name);
  if (rule.values.length === 0) return given.some((value) => Number(value) !== 0);
  return given.some((value) => rule.values.includes(value));
}

function showWhatCounts() {
  for (const node of form.querySelectorAll("[data-setting]")) {
    const rule = when[node.dataset.setting];
    if (rule) node.hidden = !counts(rule);
  }
  for (const node of form.querySelectorAll("[data-show-rows]")) {
    node.hidden = !node.dataset.showRows.split(" ").includes(rowsFrom());
  }
}

// --- presets ---------------------------------------------------------------------------------------------------------

function same(name, wanted) {
  const [given] = values(name);
  return typeof wanted === "number" ? given !== "" && Number(given) === wanted : given === wanted;
}

function markPresets() {
  for (const button of form.querySelectorAll("[data-preset]")) {
    const chosen = Object.entries(presets[button.dataset.preset]).every(([name, wanted]) => same(name, wanted));
    button.setAttribute("aria-pressed", String(chosen));
  }
}

function applyPreset(id) {
  for (const [name, value] of Object.entries(presets[id])) form.elements[name].value = value;
  changed();
}

// --- errors at the fields --------------------------------------------------------------------------------------------

function stepOf(node) {
  return Number(node.closest("[data-step]")?.dataset.step ?? 0);
}

function place(name) {
  const control = document.getElementById(`id_${name}`);
  return control && { control, box: control.closest(".field") };
}

function showError(name, messages) {
  const found = place(name);
  if (!found?.box) return;
  const { control, box } = found;
  const id = `id_${name}_error`;
  document.getElementById(id)?.remove();
  const described = (control.getAttribute("aria-describedby") ?? "").split(" ").filter((part) => part && part !== id);
  if (messages.length) {
    const lines = messages.map((text) => {
      const line = element("p", { class: "field__error" }, element("span", {}, text));
      line.prepend(icon("circle-alert"));
      return line;
    });
    const error = element("div", { id }, ...lines);
    if (control === box) box.append(error);
    else control.after(error);
    described.unshift(id);
  }
  if (control.nodeName !== "FIELDSET") {
    if (messages.length) control.setAttribute("aria-invalid", "true");
    else control.removeAttribute("aria-invalid");
  }
  if (described.length) control.setAttribute("aria-describedby", described.join(" "));
  else control.removeAttribute("aria-describedby");
}

function isShown(name) {
  const found = place(name);
  if (!found) return true; // it concerns the form as a whole
  const step = stepOf(found.control);
  return touched.has(name) || step < seen || form.hasAttribute("data-bound");
}

function showErrors() {
  const marked = [...form.querySelectorAll('[id^="id_"][id$="_error"]')].map((node) => node.id.slice(3, -6));
  for (const name of new Set([...marked, ...Object.keys(errors)])) {
    showError(name, isShown(name) ? (errors[name] ?? []) : []);
  }
  for (const button of form.querySelectorAll("[data-go]")) {
    const count = faultsIn(Number(button.dataset.go)).filter(isShown).length;
    if (count) button.dataset.faults = count;
    else delete button.dataset.faults;
  }
  if (form.hasAttribute("data-bound")) showWhole(errors.__all__ ?? []);
}

function showWhole(messages) {
  const box = document.getElementById("form-errors");
  if (!messages.length) return box.replaceChildren();
  const alert = element("div", { class: "alert alert--error" }, element("div", {}, ...messages.map((text) => element("p", {}, text))));
  alert.prepend(icon("circle-alert"));
  box.replaceChildren(alert);
}

function faultsIn(step) {
  return Object.keys(errors).filter((name) => {
    const found = place(name);
    return found && stepOf(found.control) === step;
  });
}

// --- what the server says --------------------------------------------------------------------------------------------

async function preview() {
  asked?.abort();
  asked = new AbortController();
  state.textContent = "Working it out…";
  try {
    const options = { method: "POST", body: new FormData(form), signal: asked.signal, headers: { "HX-Request": "true" } };
    const answer = await fetch(form.dataset.preview, options);
    if (!answer.ok) throw new Error(String(answer.status));
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of page.querySelectorAll("[data-part]")) fill(part);
    errors = JSON.parse(page.getElementById("field-errors").textContent);
    showErrors();
    state.textContent = "";
  } catch (error) {
    if (error.name === "AbortError") return;
    state.textContent = "Could not be refreshed; it is checked again when you start the job.";
  }
}

function fill(part) {
  const slot = form.querySelector(`[data-part="${part.dataset.part}"]`);
  const open = slot.querySelector("details")?.open;
  slot.replaceChildren(...document.importNode(part, true).childNodes);
  const details = slot.querySelector("details");
  if (details && open) details.open = true;
}

let timer;
function changed() {
  showWhatCounts();
  markPresets();
  saveDraft(form);
  clearTimeout(timer);
  timer = setTimeout(preview, 400);
}

// --- steps -----------------------------------------------------------------------------------------------------------

function show(step, { remember = true, focus = true } = {}) {
  current = Math.min(Math.max(step, 1), steps.length);
  seen = Math.max(seen, current);
  for (const section of steps) section.hidden = Number(section.dataset.step) !== current;
  for (const button of form.querySelectorAll("[data-go]")) {
    if (Number(button.dataset.go) === current) button.setAttribute("aria-current", "step");
    else button.removeAttribute("aria-current");
  }
  if (remember) history.pushState({ step: current }, "", `#step-${current}`);
  if (focus) {
    document.getElementById(`step-${current}-title`).focus({ preventScroll: true });
    scrollTo({ top: 0 });
  }
  showErrors();
}

function focusFault(name) {
  const { control } = place(name);
  const fold = control.closest("details");
  if (fold) fold.open = true;
  const target = control.nodeName === "FIELDSET" ? control.querySelector("input:not([type=search])") ?? control.querySelector("input") : control;
  target?.focus();
}

async function next() {
  clearTimeout(timer);
  await preview();
  for (const name of faultsIn(current)) touched.add(name);
  showErrors();
  const [fault] = faultsIn(current);
  if (fault) focusFault(fault);
  else show(current + 1);
}

form.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.preset) applyPreset(button.dataset.preset);
  else if (button.dataset.go) show(Number(button.dataset.go));
  else if ("next" in button.dataset) next();
  else if ("back" in button.dataset) show(current - 1);
});

// Enter goes on; only the last step starts the job.
form.addEventListener("submit", (event) => {
  if (current < steps.length) {
    event.preventDefault();
    next();
  } else {
    clearDraft(form);
  }
});

form.addEventListener("input", (event) => {
  if (event.target.type === "search") return;
  changed();
});
form.addEventListener("change", (event) => {
  if (!event.target.name || event.target.type === "search") return;
  touched.add(event.target.name);
  changed();
});
addEventListener("popstate", (event) => show(event.state?.step ?? 1, { remember: false }));

// --- start -----------------------------------------------------------------------------------------------------------

async function listChoice([name, value]) {
  const search = document.getElementById(`id_${name}`).querySelector("input[type=search]");
  const answer = await fetch(`${search.getAttribute("hx-get")}?${name}=${encodeURIComponent(value)}`);
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  form.querySelector(search.getAttribute("hx-target")).replaceChildren(...document.importNode(page.body, true).childNodes);
}

const note = document.getElementById("draft-note");
const notListed = restoreDraft(form);
if (notListed) {
  note.hidden = false;
  Promise.all(notListed.map(listChoice)).then(preview);
}
note.querySelector("button").addEventListener("click", () => {
  clearDraft(form);
  location.assign(location.pathname + location.search);
});
for (const node of form.querySelectorAll("[data-scripted], .stepper")) node.hidden = false;
showWhatCounts();
markPresets();
const faulty = form.querySelector('[data-step] [id$="_error"]');
show(faulty ? stepOf(faulty) : Number(location.hash.match(/^#step-(\d)$/)?.[1] ?? 1), { remember: false, focus: false });
preview();
