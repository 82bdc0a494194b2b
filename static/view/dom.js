/** Making elements. Text only ever becomes text; there is no way from here to HTML. */

/**
 * @param {string} tag
 * @param {Record<string, any>} [props]  `on…` are listeners, `class` a class, the rest properties or
 *   attributes
 * @param {...(Node|string|null|undefined|false)} kids
 */
export function h(tag, props = {}, ...kids) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (name === 'class') node.className = value;
    else if (name in node && !name.includes('-') && name !== 'list') node[name] = value;
    else node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...kids.filter((kid) => kid !== null && kid !== undefined && kid !== false));
  return node;
}

/** Sets text only where it differs, so that selections and screen readers are left alone. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** @param {string} id @returns {HTMLElement} */
export function byId(id) {
  return document.getElementById(id);
}

/**
 * Makes the children of `into` those of `wanted`, by key: what stays is kept and moved only if it must.
 * @template W, M
 * @param {HTMLElement} into @param {(W & {key:string})[]} wanted @param {Map<string, M &
 *   {node:HTMLElement}>} shown
 * @param {(one: W) => M & {node:HTMLElement}} make @param {(shown: M, one: W) => void} update
 */
export function sync(into, wanted, shown, make, update) {
  const keys = new Set(wanted.map((one) => one.key));
  for (const [key, one] of shown) {
    if (keys.has(key)) continue;
    one.node.remove();
    shown.delete(key);
  }
  let at = into.firstChild;
  for (const want of wanted) {
    let one = shown.get(want.key);
    if (!one) {
      one = make(want);
      shown.set(want.key, one);
    }
    if (one.node === at) at = at.nextSibling;
    else into.insertBefore(one.node, at);
    update(one, want);
  }
}
