/** Phones: the page is as high as what the on-screen keyboard leaves of it. */

/** @param {HTMLElement} app @param {() => void} changed */
export function fitKeyboard(app, changed) {
  const view = window.visualViewport;
  if (!view) return;
  const fit = () => {
    // Pinched: the reader looks at a detail, and nothing may jump.
    if (view.scale > 1.01) return;
    const covered = window.innerHeight - view.height > 1 || view.offsetTop > 1;
    app.style.height = covered ? `${view.height}px` : '';
    app.style.transform = covered && view.offsetTop ? `translateY(${view.offsetTop}px)` : '';
    document.body.classList.toggle('keyboard', window.innerHeight - view.height > 120);
    changed();
  };
  view.addEventListener('resize', fit);
  view.addEventListener('scroll', fit);
}
