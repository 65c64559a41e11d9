//! The token tree: the only thing a model is ever asked to run.
//!
//! Node 0 is the *anchor*, the last token of the context, whose keys and values are not in the cache yet. Every other
//! node is a guess at what follows its parent. Parents come before children, so the ascending bits of an ancestor
//! set are also the order by depth. Sibling tokens are distinct: pushing the same (parent, token) twice gives the same node.

/// A token id of the target's vocabulary.
pub type Token = u32;

/// Index of a node within its tree.
pub type NodeId = usize;

/// One node: a token and where it hangs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Node {
    /// The token guessed here.
    pub token: Token,
    /// The node it follows; the anchor is its own parent.
    pub parent: NodeId,
    /// Distance from the anchor.
    pub depth: u8,
    /// Cumulative log-probability or any other score, higher is better; decides what survives [`DraftTree::best`].
    pub score: f32,
}

/// A tree of at most [`DraftTree::MAX`] nodes.
#[derive(Clone, Debug)]
pub struct DraftTree {
    nodes: Vec<Node>,
    budget: usize,
}

impl DraftTree {
    /// The most nodes a tree can have, anchor included: a set of nodes is one `u64`.
    pub const MAX: usize = 64;

    /// A tree that holds only `anchor` and takes up to `budget` nodes in all (clamped to `1..=MAX`).
    pub fn new(anchor: Token, budget: usize) -> Self {
        let root = Node { token: anchor, parent: 0, depth: 0, score: 0.0 };
        Self { nodes: vec![root], budget: budget.clamp(1, Self::MAX) }
    }

    /// Adds `token` under `parent`, or finds it there. `None` when the budget is spent.
    pub fn push(&mut self, parent: NodeId, token: Token, score: f32) -> Option<NodeId> {
        if let Some(id) = self.child(parent, token) {
            self.nodes[id].score = self.nodes[id].score.max(score);
            return Some(id);
        }
        if self.nodes.len() == self.budget {
            return None;
        }
        let depth = self.nodes[parent].depth + 1;
        self.nodes.push(Node { token, parent, depth, score });
        Some(self.nodes.len() - 1)
    }

    /// The child of `parent` that carries `token`.
    pub fn child(&self, parent: NodeId, token: Token) -> Option<NodeId> {
        self.children(parent).find(|&id| self.nodes[id].token == token)
    }

    /// Nodes that still fit.
    pub fn room(&self) -> usize {
        self.budget - self.nodes.len()
    }

    /// The children of a node, in the order they were added.
    pub fn children(&self, parent: NodeId) -> impl Iterator<Item = NodeId> {
        (parent + 1..self.nodes.len()).filter(move |&id| self.nodes[id].parent == parent)
    }

    /// All nodes, parents before children.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Tokens of all nodes, in node order.
    pub fn tokens(&self) -> Vec<Token> {
        self.nodes.iter().map(|n| n.token).collect()
    }

    /// For every node the set of its ancestors and itself: bit *j* of entry *i* says that node *i* sees node *j*.
    pub fn ancestors(&self) -> Vec<u64> {
        let mut sets: Vec<u64> = Vec::with_capacity(self.nodes.len());
        for (id, node) in self.nodes.iter().enumerate() {
            let above = if id == 0 { 0 } else { sets[node.parent] };
            sets.push(above | 1 << id);
        }
        sets
    }

    /// The nodes from the anchor down to `node`, both included.
    pub fn path(&self, node: NodeId) -> Vec<NodeId> {
        let mut path = vec![node];
        while let Some(&id) = path.last().filter(|&&id| id != 0) {
            path.push(self.nodes[id].parent);
        }
        path.reverse();
        path
    }

    /// The `n` best nodes (anchor included) as a tree. A parent never scores below its child under the drafters'
    /// cumulative scores; where one does, it is kept for the child's sake before anything better is.
    pub fn best(&self, n: usize) -> DraftTree {
        let mut order: Vec<NodeId> = (1..self.nodes.len()).collect();
        order.sort_by(|&a, &b| self.nodes[b].score.total_cmp(&self.nodes[a].score).then(a.cmp(&b)));
        let mut keep: u64 = 1;
        for id in order {
            let path = self.path(id).iter().fold(0u64, |set, &p| set | 1 << p);
            if (keep | path).count_ones() as usize <= n {
                keep |= path;
            }
        }
        let mut tree = DraftTree::new(self.nodes[0].token, self.budget);
        let mut renamed = [0; Self::MAX];
        for (id, node) in self.nodes.iter().enumerate().skip(1).filter(|(id, _)| keep >> id & 1 == 1) {
            renamed[id] = tree.push(renamed[node.parent], node.token, node.score).expect("no larger than its source");
        }
        tree
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> DraftTree {
        let mut t = DraftTree::new(7, 64);
        let a = t.push(0, 1, -1.0).unwrap();
        let b = t.push(0, 2, -2.0).unwrap();
        let c = t.push(a, 3, -1.5).unwrap();
        t.push(b, 3, -4.0).unwrap();
        t.push(c, 1, -3.0).unwrap();
        t
    }

    #[test]
    fn same_token_under_same_parent_is_one_node() {
        let mut t = sample();
        let n = t.nodes().len();
        assert_eq!(t.push(0, 1, -0.5), Some(1));
        assert_eq!(t.nodes().len(), n);
        assert_eq!(t.nodes()[1].score, -0.5);
    }

    #[test]
    fn ancestors_are_the_path() {
        let t = sample();
        for (id, set) in t.ancestors().into_iter().enumerate() {
            let path = t.path(id);
            assert_eq!(path.iter().fold(0u64, |s, &p| s | 1 << p), set);
            assert_eq!(path.len(), t.nodes()[id].depth as usize + 1);
        }
    }

    #[test]
    fn budget_holds() {
        let mut t = DraftTree::new(0, 3);
        assert!(t.push(0, 1, 0.0).is_some() && t.push(0, 2, 0.0).is_some());
        assert_eq!(t.push(0, 3, 0.0), None);
        assert_eq!(t.push(0, 2, 0.0), Some(2));
    }

    #[test]
    fn best_keeps_parents() {
        let t = sample().best(4);
        assert_eq!(t.tokens(), [7, 1, 2, 3]);
        assert_eq!(sample().best(1).tokens(), [7]);
        assert_eq!(sample().best(64).tokens(), sample().tokens());
    }
}
