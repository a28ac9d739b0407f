// Where a part of the page is replaced, the focus stays with the control that had it.

let focused = null;

export function initFocus() {
  document.addEventListener("htmx:before:swap", () => {
    const active = document.activeElement;
    focused = active && active !== document.body ? { id: active.id, name: active.name, node: active } : null;
  });
  document.addEventListener("htmx:after:swap", () => {
    if (focused === null || focused.node.isConnected || document.activeElement !== document.body) return;
    const again =
      (focused.id && document.getElementById(focused.id)) ||
      (focused.name && document.querySelector(`[name="${CSS.escape(focused.name)}"]`));
    (again || document.getElementById("main"))?.focus({ preventScroll: true });
    focused = null;
  });
}
