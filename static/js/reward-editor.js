// Editors for Python and JSON in place of their textareas (data-editor), which stay what is sent.
//
// A message at the field that names a line is shown at that line too; `markLine` does the same for a test's traceback.
import {
  EditorState,
  EditorView,
  HighlightStyle,
  autocompletion,
  bracketMatching,
  closeBrackets,
  closeBracketsKeymap,
  completionKeymap,
  defaultKeymap,
  drawSelection,
  highlightActiveLine,
  highlightActiveLineGutter,
  highlightSpecialChars,
  history,
  historyKeymap,
  indentOnInput,
  indentUnit,
  indentWithTab,
  json,
  jsonParseLinter,
  keymap,
  lineNumbers,
  lintGutter,
  linter,
  python,
  setDiagnostics,
  syntaxHighlighting,
  tags,
} from "../vendor/codemirror/codemirror.min.js";

const nonce = document.getElementById("reward-editor").nonce;
const views = new Map(); // textarea -> editor

const colours = HighlightStyle.define([
  { tag: [tags.keyword, tags.operatorKeyword, tags.controlKeyword], color: "var(--chart-4)" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--success)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--warning)" },
  { tag: [tags.comment], color: "var(--text-3)", fontStyle: "italic" },
  { tag: [tags.propertyName, tags.definition(tags.variableName), tags.function(tags.variableName)], color: "var(--accent)" },
  { tag: tags.invalid, color: "var(--danger)" },
]);

const look = EditorView.theme({
  "&": { color: "var(--text)", backgroundColor: "var(--surface)", fontSize: "var(--text-sm)" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.55", maxHeight: "34rem" },
  ".cm-content, .cm-gutter": { minHeight: "9rem" },
  ".cm-content": { caretColor: "var(--text)" },
  ".cm-cursor": { borderLeftColor: "var(--text)" },
  ".cm-gutters": { backgroundColor: "var(--surface-sunken)", color: "var(--text-3)", border: "none" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "color-mix(in srgb, var(--neutral-soft) 55%, transparent)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": {
    backgroundColor: "var(--accent-soft)",
  },
  ".cm-tooltip": { backgroundColor: "var(--surface-raised)", border: "1px solid var(--border)", color: "var(--text)" },
  ".cm-tooltip-autocomplete > ul > li[aria-selected]": { backgroundColor: "var(--accent-solid)", color: "#fff" },
  ".cm-diagnostic-error": { borderLeftColor: "var(--danger)" },
});

const jsonFaults = (view) => (view.state.doc.toString().trim() ? jsonParseLinter()(view) : []);

function languageOf(textarea) {
  if (textarea.dataset.editor === "json") return [json(), linter(jsonFaults)];
  return [python(), indentUnit.of("    ")];
}

function open(textarea) {
  const place = document.createElement("div");
  place.className = "editor";
  place.classList.toggle("editor--invalid", textarea.getAttribute("aria-invalid") === "true");
  textarea.before(place);
  const label = document.querySelector(`label[for="${CSS.escape(textarea.id)}"]`);
  const attributes = { "aria-label": `${label?.textContent.trim() ?? "Code"}. Escape, then Tab, leaves the editor.` };
  const described = textarea.getAttribute("aria-describedby");
  if (described) attributes["aria-describedby"] = described;
  const view = new EditorView({
    parent: place,
    state: EditorState.create({
      doc: textarea.value,
      extensions: [
        EditorView.cspNonce.of(nonce),
        lineNumbers(),
        highlightActiveLineGutter(),
        highlightSpecialChars(),
        history(),
        drawSelection(),
        indentOnInput(),
        syntaxHighlighting(colours),
        bracketMatching(),
        closeBrackets(),
        autocompletion(),
        highlightActiveLine(),
        lintGutter(),
        languageOf(textarea),
        look,
        EditorView.lineWrapping,
        EditorView.contentAttributes.of(attributes),
        // Ctrl+Enter is the test's; Escape lets the next Tab leave the editor.
        keymap.of([
          { key: "Mod-Enter", run: () => (document.querySelector("[data-try]")?.click(), true) },
          ...closeBracketsKeymap,
          ...defaultKeymap,
          ...historyKeymap,
          ...completionKeymap,
          indentWithTab,
        ]),
        EditorView.updateListener.of((update) => {
          if (update.docChanged) textarea.value = update.state.doc.toString();
        }),
      ],
    }),
  });
  views.set(textarea, view);
  label?.addEventListener("click", () => view.focus());
  const field = textarea.closest(".field");
  for (const error of field?.querySelectorAll(".field__error") ?? []) {
    const line = /line (\d+)/i.exec(error.textContent);
    if (line) mark(view, Number(line[1]), error.textContent.trim());
  }
}

function mark(view, number, message) {
  if (number < 1 || number > view.state.doc.lines) return;
  const line = view.state.doc.line(number);
  const fault = { from: line.from, to: line.to, severity: "error", message };
  view.dispatch(setDiagnostics(view.state, [fault]));
}

/** Show a message at a line of the tenant Python that is on the page now. */
export function markLine(number, message) {
  for (const [textarea, view] of views) {
    if (textarea.name.endsWith("-code") && view.dom.offsetParent) mark(view, number, message);
  }
}

/** Take marks of an earlier test away. */
export function clearMarks() {
  for (const view of views.values()) view.dispatch(setDiagnostics(view.state, []));
}

function openAll(root) {
  for (const textarea of root.querySelectorAll("textarea[data-editor]")) if (!views.has(textarea)) open(textarea);
}

openAll(document);
addEventListener("editors", (event) => openAll(event.detail));
