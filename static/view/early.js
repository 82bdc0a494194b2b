// A classic script, so that it runs before the first paint: the theme that a switch chose, and the page's
// frame where this browser is paired.
try {
  const theme = localStorage.getItem('siskin.theme');
  if (theme === 'light' || theme === 'dark') document.documentElement.setAttribute('data-theme', theme);
  if (localStorage.getItem('siskin.token')) document.documentElement.setAttribute('data-paired', '');
} catch {
  // Storage is forbidden: as the system has it.
}
