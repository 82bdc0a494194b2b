// A classic script, so that it runs before the first paint: the theme that a switch chose.
try {
  const theme = localStorage.getItem('siskin.theme');
  if (theme === 'light' || theme === 'dark') document.documentElement.setAttribute('data-theme', theme);
} catch {
  // Storage is forbidden: as the system has it.
}
