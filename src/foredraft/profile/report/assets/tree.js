// The drawing of a tree of drafted tokens: depth from left to right, the first choice of each node straight on.

/**
 * Places of all nodes. parents: parents before children, -1 the root. Returns {nodes: [{depth, row, rank}], depth, rows,
 * root: row of the root}. A node stands at the height of its first child, leaves on rows of their own.
 */
function treeLayout(parents) {
  const children = new Map([[-1, []]]);
  const nodes = parents.map((parent, node) => {
    children.set(node, []);
    const siblings = children.get(parent);
    siblings.push(node);
    return { depth: 1, row: 0, rank: siblings.length };
  });
  nodes.forEach((node, index) => {
    node.depth = parents[index] < 0 ? 1 : nodes[parents[index]].depth + 1;
  });
  let rows = 0;
  const place = (node) => {
    const below = children.get(node).map(place);
    const row = below.length ? below[0] : rows;
    if (!below.length) rows += 1;
    if (node >= 0) nodes[node].row = row;
    return row;
  };
  const root = place(-1);
  return { nodes, root, rows: Math.max(1, rows), depth: Math.max(1, ...nodes.map((node) => node.depth)) };
}

/** How many nodes stand at each depth. */
function treeLevels(layout) {
  const levels = Array(layout.depth).fill(0);
  for (const node of layout.nodes) levels[node.depth - 1] += 1;
  return levels;
}

/** Whether no node has a sibling. */
function isChain(parents) {
  return new Set(parents).size === parents.length;
}

function treePicture(parents, { width, title, description }) {
  const layout = treeLayout(parents);
  const gap = 34;
  const left = 46;
  const step = Math.min(96, (width - left - 24) / layout.depth);
  const radius = Math.min(11, step * 0.36);
  const x = (depth) => left + depth * step;
  const y = (row) => 44 + row * gap;
  const edges = layout.nodes.map((node, index) => {
    const parent = parents[index] < 0 ? { depth: 0, row: layout.root } : layout.nodes[parents[index]];
    return edge(x(parent.depth), y(parent.row), x(node.depth), y(node.row));
  });
  const every = Math.ceil(24 / step);
  const depths = Array.from({ length: layout.depth }, (_, index) => index + 1).filter((depth) => depth % every === 0 || depth === 1);
  return picture(width, y(layout.rows - 1) + 24, title, description,
    label(4, 14, "depth", "tick"), ...depths.map((depth) => label(x(depth), 14, String(depth), "tick", "middle")),
    ...edges, rootNode(x(0), y(layout.root)), ...layout.nodes.map((node) => treeNode(x(node.depth), y(node.row), node.rank, radius)));
}

function rootNode(x, y) {
  return draw("rect", { x: x - 9, y: y - 9, width: 18, height: 18, rx: 4, class: "root" });
}

function edge(x1, y1, x2, y2) {
  const middle = (x1 + x2) / 2;
  return draw("path", { d: `M${x1} ${y1} C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`, class: "edge" });
}

/** A node with its rank among its siblings; the first choice is filled. */
function treeNode(x, y, rank, radius) {
  const name = rank === 1 ? "node first" : "node";
  const circle = draw("circle", { cx: x, cy: y, r: radius, class: name });
  if (radius < 7) return circle;
  return draw("g", {}, circle, label(x, y + 4, String(rank), rank === 1 ? "rank first" : "rank", "middle"));
}
