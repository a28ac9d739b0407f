// What was typed into the new-job form stays while one looks elsewhere in the same tab, for example to upload a dataset.

const NOT_KEPT = new Set(["csrfmiddlewaretoken", "idempotency_key", "dataset_query", "reward_query"]);

function key(form) {
  return `job-draft:${form.dataset.tenant}:${location.search}`;
}

export function saveDraft(form) {
  const entries = [...new FormData(form)].filter(([name]) => !NOT_KEPT.has(name));
  sessionStorage.setItem(key(form), JSON.stringify(entries));
}

export function clearDraft(form) {
  sessionStorage.removeItem(key(form));
}

/**
 * Put the draft back, unless the server has just sent the form with what was typed. False where there is none; else the
 * choices, as [name, value], that the page does not list.
 */
export function restoreDraft(form) {
  const kept = sessionStorage.getItem(key(form));
  if (!kept || form.hasAttribute("data-bound")) return false;
  const entries = JSON.parse(kept);
  const names = new Set(entries.map(([name]) => name));
  for (const control of form.elements) {
    if (!control.name || NOT_KEPT.has(control.name) || control.disabled) continue;
    const values = entries.filter(([name]) => name === control.name).map(([, value]) => value);
    if (control.type === "checkbox" || control.type === "radio") {
      if (control.type === "checkbox" || names.has(control.name)) control.checked = values.includes(control.value);
    } else if (values.length && control.type !== "hidden") {
      [control.value] = values;
    }
  }
  return entries.filter(([name, value]) => /_version$/.test(name) && new FormData(form).get(name) !== value);
}
