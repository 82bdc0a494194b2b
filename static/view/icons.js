/** Line icons on a 20 px grid, drawn with the text's colour. */

const PATHS = {
  menu: 'M3 6h14M3 10h14M3 14h14',
  plus: 'M10 4v12M4 10h12',
  close: 'M5 5l10 10M15 5L5 15',
  send: 'M10 16V4M5 9l5-5 5 5',
  stop: 'M6 6h8v8H6z',
  down: 'M10 4v12M5 11l5 5 5-5',
  check: 'M4 10.500l4 4 8-9',
  cross: 'M5.500 5.500l9 9M14.500 5.500l-9 9',
  chevron: 'M7.500 5l5 5-5 5',
  dots: 'M4 10h.01M10 10h.01M16 10h.01',
  copy: 'M7 7h9v9H7zM13 7V4H4v9h3',
  again: 'M16 10a6 6 0 1 1-1.800-4.300M16 3v3.500h-3.500',
  think: 'M10 3v2.500M10 14.500V17M3 10h2.500M14.500 10H17M5 5l1.800 1.800M13.200 13.200L15 15M5 15l1.800-1.800M13.200 6.800L15 5',
  terminal: 'M3 4h14v12H3zM6 8l2.500 2L6 12M10.500 12.500H14',
  file: 'M5 3h6.500L15 6.500V17H5zM11.500 3v3.500H15',
  pencil: 'M4 16l.800-3.500L13.500 3.800l2.700 2.700-8.700 8.700z',
  folder: 'M3 5h5l1.500 2H17v9H3z',
  search: 'M9 4a5 5 0 1 0 0 10A5 5 0 0 0 9 4zM12.800 12.800L17 17',
  globe: 'M10 3a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM3 10h14M10 3c4 4 4 10 0 14M10 3c-4 4-4 10 0 14',
  chip: 'M6 6h8v8H6zM8 3v3M12 3v3M8 14v3M12 14v3M3 8h3M3 12h3M14 8h3M14 12h3',
  tool: 'M12.500 3.500a4 4 0 0 0-4.800 5.200L3.500 13l3.500 3.500 4.300-4.200a4 4 0 0 0 5.200-4.800l-2.500 2.500-2.500-.500-.500-2.500z',
  warn: 'M10 3.500L17.500 16.500h-15zM10 8v4M10 14.300v.100',
  device: 'M3 11h14v5H3zM6 13.500h.01M9 13.500h.01M6 11V5M14 11V5',
  sun: 'M10 6.500a3.500 3.500 0 1 0 0 7 3.500 3.500 0 0 0 0-7zM10 2v1.500M10 16.500V18M2 10h1.500M16.500 10H18M4.300 4.300l1 1M14.700 14.700l1 1' +
    'M4.300 15.700l1-1M14.700 5.300l1-1',
  moon: 'M16 12A7 7 0 0 1 8 4a6.500 6.500 0 1 0 8 8z',
  auto: 'M10 3a7 7 0 1 0 0 14zM10 3a7 7 0 0 1 0 14',
  archive: 'M3 4h14v3.500H3zM4.500 7.500V16h11V7.500M8 10.500h4',
};

const TOOLS = {
  shell: 'terminal', read_file: 'file', write_file: 'pencil', edit_file: 'pencil', list_files: 'folder', search: 'search',
  http_get: 'globe', system_info: 'chip',
};

const SVG = 'http://www.w3.org/2000/svg';

/** @param {string} name @returns {SVGElement} */
export function icon(name) {
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('viewBox', '0 0 20 20');
  svg.setAttribute('class', `icon icon-${name}`);
  svg.setAttribute('aria-hidden', 'true');
  const path = document.createElementNS(SVG, 'path');
  path.setAttribute('d', PATHS[name] || PATHS.tool);
  svg.append(path);
  return svg;
}

/** @param {string} tool  a tool's name */
export function toolIcon(tool) {
  return icon(TOOLS[tool] || 'tool');
}
