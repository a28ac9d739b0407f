// Ctrl+K: a dialog that goes anywhere. Pages and actions are known here; jobs, datasets, rewards and adapters are found
// by the server. A combobox with a listbox: the focus stays in the field, aria-activedescendant names the choice.
import { element } from "./dom.js";

const DEBOUNCE_MS = 120;
const SHORTEST = 2;

/** Whether every word of the query begins a word of the title, or lies in it. */
export function matches(title, query) {
  const text = title.toLowerCase();
  return query.toLowerCase().split(/\s+/).filter(Boolean).every((word) => text.includes(word));
}

class Palette {
  #choices = [];
  #chosen = 0;
  #timer;
  #request = null;

  constructor(dialog) {
    this.dialog = dialog;
    this.input = dialog.querySelector("input");
    this.list = dialog.querySelector("[role=listbox]");
    this.status = dialog.querySelector("[data-palette-status]");
    this.input.addEventListener("input", () => this.#search());
    this.input.addEventListener("keydown", (event) => this.#key(event));
    this.list.addEventListener("click", (event) => this.#go(event.target.closest("[role=option]")));
    dialog.addEventListener("close", () => this.#stop());
  }

  open() {
    if (this.dialog.open || document.querySelector("dialog[open]")) return;
    this.entries = this.#pages();
    this.input.value = "";
    this.dialog.showModal();
    this.input.focus();
    this.#search();
  }

  #pages() {
    const entries = new Map();
    const add = (kind, link) => {
      const title = link.textContent.trim();
      if (!entries.has(link.href)) entries.set(link.href, { kind, title, detail: "", keys: link.dataset.shortcut, url: link.href });
    };
    for (const link of document.querySelectorAll(".sidebar nav a[href]")) add("Page", link);
    for (const link of this.dialog.querySelectorAll("[data-palette-entries] a")) add(link.dataset.kind, link);
    return [...entries.values()];
  }

  #search() {
    this.#stop();
    const query = this.input.value.trim();
    const here = this.entries.filter(({ title }) => matches(title, query));
    this.#show(here, query.length >= SHORTEST ? "Searching…" : "");
    if (query.length >= SHORTEST) this.#timer = setTimeout(() => this.#ask(query, here), DEBOUNCE_MS);
  }

  #stop() {
    clearTimeout(this.#timer);
    this.#request?.abort();
  }

  async #ask(query, here) {
    this.#request = new AbortController();
    const address = new URL(this.dialog.dataset.search, location.href);
    address.searchParams.set("q", query);
    try {
      // Marked as a part of a page: whoever is signed out gets an error instead of the sign-in page.
      const answer = await fetch(address, { headers: { "HX-Request": "true" }, signal: this.#request.signal });
      if (!answer.ok) throw new Error(answer.status === 401 ? "You are signed out. Reload the page." : "The search failed. Try again.");
      const { results } = await answer.json();
      this.#show([...results, ...here], "");
    } catch (error) {
      if (error.name === "AbortError") return;
      this.#show(here, error instanceof TypeError ? "The server cannot be reached: only pages are shown." : error.message);
    }
  }

  #show(choices, note) {
    this.#choices = choices;
    this.list.replaceChildren(...choices.map((choice, index) => this.#option(choice, index)));
    this.list.hidden = choices.length === 0;
    this.status.textContent = note || (choices.length ? "" : "Nothing found. Names are searched in all jobs, datasets, rewards and adapters.");
    this.#choose(0);
  }

  #option({ kind, title, detail, keys }, index) {
    return element(
      "li",
      { role: "option", id: `palette-${index}`, class: "palette__option" },
      element("span", { class: "palette__kind" }, kind),
      element("span", { class: "truncate" }, title),
      element("span", { class: "palette__detail" }, ...(keys ? keys.split(" ").map((key) => element("kbd", {}, key)) : [detail])),
    );
  }

  #choose(index) {
    const options = [...this.list.children];
    this.#chosen = options.length ? (index + options.length) % options.length : 0;
    options.forEach((option, each) => option.setAttribute("aria-selected", each === this.#chosen));
    const chosen = options[this.#chosen];
    if (chosen) this.input.setAttribute("aria-activedescendant", chosen.id);
    else this.input.removeAttribute("aria-activedescendant");
    chosen?.scrollIntoView({ block: "nearest" });
  }

  #key(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1 };
    if (event.key in steps) this.#choose(this.#chosen + steps[event.key]);
    else if (event.key === "Enter") this.#go(this.list.children[this.#chosen]);
    else return;
    event.preventDefault();
  }

  #go(option) {
    if (option) location.assign(this.#choices[[...this.list.children].indexOf(option)].url);
  }
}

export function initPalette() {
  const dialog = document.getElementById("palette");
  if (!dialog) return;
  const palette = new Palette(dialog);
  document.addEventListener("keydown", (event) => {
    if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey) return;
    event.preventDefault();
    palette.open();
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-palette]")) palette.open();
  });
}
