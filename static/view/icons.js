/** Line icons on a 20 px grid, drawn with the text's colour. */

const PATHS = {
  menu: 'M3 6h14M3 10h14M3 14h14',
  plus: 'M10 4v12M4 10h12',
  close: 'M5 5l10 10M15 5L5 15',
  send: 'M10 16V4M5 9l5-5 5 5',
  stop: 'M6 6h8v8H6z',
  down: 'M10 4v12M5 11l5 5 5-5',
  check: 'M4 10.5l4 4 8-9',
  cross: 'M5.5 5.5l9 9M14.5 5.5l-9 9',
  chevron: 'M7.5 5l5 5-5 5',
  copy: 'M7 7h9v9H7zM13 7V4H4v9h3',
  again: 'M16 10a6 6 0 1 1-1.8-4.3M16 3v3.5h-3.5',
  think: 'M10 3v2.5M10 14.5V17M3 10h2.5M14.5 10H17M5 5l1.8 1.8M13.2 13.2L15 15M5 15l1.8-1.8M13.2 6.8L15 5',
  terminal: 'M3 4h14v12H3zM6 8l2.5 2L6 12M10.5 12.5H14',
  file: 'M5 3h6.5L15 6.5V17H5zM11.5 3v3.5H15',
  pencil: 'M4 16l.8-3.5L13.5 3.8l2.7 2.7-8.7 8.7z',
  folder: 'M3 5h5l1.5 2H17v9H3z',
  search: 'M9 4a5 5 0 1 0 0 10A5 5 0 0 0 9 4zM12.8 12.8L17 17',
  globe: 'M10 3a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM3 10h14M10 3c4 4 4 10 0 14M10 3c-4 4-4 10 0 14',
  chip: 'M6 6h8v8H6zM8 3v3M12 3v3M8 14v3M12 14v3M3 8h3M3 12h3M14 8h3M14 12h3',
  tool: 'M12.5 3.5a4 4 0 0 0-4.8 5.2L3.5 13l3.5 3.5 4.3-4.2a4 4 0 0 0 5.2-4.8l-2.5 2.5-2.5-.5-.5-2.5z',
  warn: 'M10 3.5L17.5 16.5h-15zM10 8v4M10 14.3v.1',
  device: 'M3 11h14v5H3zM6 13.5h.01M9 13.5h.01M6 11V5M14 11V5',
  sun:
    'M10 6.5a3.5 3.5 0 1 0 0 7 3.5 3.5 0 0 0 0-7zM10 2v1.5M10 16.5V18M2 10h1.5M16.5 10H18' +
    'M4.3 4.3l1 1M14.7 14.7l1 1M4.3 15.7l1-1M14.7 5.3l1-1',
  moon: 'M16 12A7 7 0 0 1 8 4a6.5 6.5 0 1 0 8 8z',
  auto: 'M10 3a7 7 0 1 0 0 14zM10 3a7 7 0 0 1 0 14',
  archive: 'M3 4h14v3.5H3zM4.5 7.5V16h11V7.5M8 10.5h4',
  more: 'M4.5 10h.01M10 10h.01M15.5 10h.01',
};

const TOOLS = {
  shell: 'terminal',
  read_file: 'file',
  write_file: 'pencil',
  edit_file: 'pencil',
  list_files: 'folder',
  search: 'search',
  http_get: 'globe',
  system_info: 'chip',
};

const SVG = 'http://www.w3.org/2000/svg';

/** @param {string} name @returns {SVGElement} */
export function icon(name) {
  return drawn(name, PATHS[name] || PATHS.tool);
}

/** @param {string} name @param {string} d  for what is not needed at once @returns {SVGElement} */
export function drawn(name, d) {
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('viewBox', '0 0 20 20');
  svg.setAttribute('class', `icon icon-${name}`);
  svg.setAttribute('aria-hidden', 'true');
  const path = document.createElementNS(SVG, 'path');
  path.setAttribute('d', d);
  svg.append(path);
  return svg;
}

/** @param {string} tool  a tool's name */
export function toolIcon(tool) {
  return icon(TOOLS[tool] || 'tool');
}
