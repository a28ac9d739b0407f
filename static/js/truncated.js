// What is cut off with an ellipsis is told in full when pointed at.

const CUT = ".truncate, .crumbs > *, .table--jobs .title, .group__prompt, .trial__prompt, .u-label, .excerpt";

function isCut({ scrollWidth, clientWidth, scrollHeight, clientHeight }) {
  return scrollWidth > clientWidth || scrollHeight > clientHeight + 2;
}

export function initTruncated() {
  document.addEventListener("pointerover", ({ target }) => {
    const node = target.closest?.(CUT);
    if (node && !node.title && isCut(node)) node.title = node.textContent.trim().replace(/\s+/g, " ");
  });
}
