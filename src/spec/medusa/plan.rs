//! Which combinations of the heads' guesses become nodes: the sparse tree.

use crate::tree::DraftTree;
use anyhow::{Result, ensure};
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

/// Guesses of a head that are looked at when a tree is grown.
pub const TOP: usize = 16;
/// Nodes beside the anchor.
const MOST: usize = DraftTree::MAX - 1;

/// A node to be: the guess of rank `rank` of head `level`, after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// 0 for the anchor, else the number of a wish that comes before this one, from 1.
    pub parent: usize,
    /// Levels between it and the anchor, which is the number of its head.
    pub level: usize,
    /// How many guesses of the head are better.
    pub rank: usize,
}

/// Wishes, parents before children, the most promising first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan(Vec<Wish>);

impl Plan {
    /// The wishes.
    pub fn wishes(&self) -> &[Wish] {
        &self.0
    }

    /// The best guess of each of `levels` heads.
    pub fn chain(levels: usize) -> Plan {
        Plan((0..levels.min(MOST)).map(|level| Wish { parent: level, level, rank: 0 }).collect())
    }

    /// Those `paths` of ranks that `levels` heads of `rows` guesses can give, in their order.
    pub fn fixed(paths: &[Vec<usize>], levels: usize, rows: usize) -> Plan {
        let (mut wishes, mut known): (Vec<Wish>, HashMap<&[usize], usize>) = Default::default();
        for path in paths.iter().filter(|path| path.len() <= levels && path.iter().all(|&rank| rank < rows)) {
            let mut parent = 0;
            for n in 1..=path.len() {
                if let Some(&there) = known.get(&path[..n]) {
                    parent = there;
                } else if wishes.len() < MOST {
                    wishes.push(Wish { parent, level: n - 1, rank: path[n - 1] });
                    parent = wishes.len();
                    known.insert(&path[..n], parent);
                } else {
                    break;
                }
            }
        }
        Plan(wishes)
    }

    /// What accuracies by head and rank make of it: the node that is likeliest to be right comes next, where a head is
    /// as likely to be right whatever the others guess.
    pub fn grown(accuracy: &[impl AsRef<[f32]>]) -> Plan {
        // Ranks of each head, the most accurate first.
        let order: Vec<Vec<(f64, usize)>> = accuracy
            .iter()
            .map(|ranks| {
                let mut ranks: Vec<_> = ranks.as_ref().iter().enumerate().map(|(i, &a)| (f64::from(a), i)).collect();
                ranks.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
                ranks
            })
            .collect();
        let (mut open, mut wishes) = (BinaryHeap::new(), vec![]);
        let offer = |open: &mut BinaryHeap<Offer>, parent: usize, level: usize, place: usize, above: f64| {
            if let Some(&(share, rank)) = order.get(level).and_then(|ranks| ranks.get(place)) {
                open.push(Offer { chance: above * share, above, place, wish: Wish { parent, level, rank } });
            }
        };
        offer(&mut open, 0, 0, 0, 1.0);
        while wishes.len() < MOST
            && let Some(Offer { chance, above, place, wish }) = open.pop()
        {
            wishes.push(wish);
            offer(&mut open, wish.parent, wish.level, place + 1, above);
            offer(&mut open, wishes.len(), wish.level + 1, 0, chance);
        }
        Plan(wishes)
    }
}

/// A node that could be next.
struct Offer {
    chance: f64,
    /// Chance of its parent.
    above: f64,
    /// Which of its head's guesses by accuracy.
    place: usize,
    wish: Wish,
}

impl Ord for Offer {
    /// By chance; of equals the one nearer to the anchor, then the one whose parent came first, is greater.
    fn cmp(&self, other: &Self) -> Ordering {
        let ties = |it: &Offer| (it.wish.level, it.wish.parent, it.place);
        self.chance.total_cmp(&other.chance).then_with(|| ties(other).cmp(&ties(self)))
    }
}

impl PartialOrd for Offer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Offer {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Offer {}

/// Accuracies of a head's guesses by rank when its first is right so often: of what is left the second has a quarter, and
/// each further one less.
pub fn ranks(first: f64) -> impl Iterator<Item = f64> {
    let rest = (1.0 - first) / 4.0;
    std::iter::once(first).chain((1..TOP as i32).map(move |rank| (rest * 0.7f64.powi(rank - 1)).min(first)))
}

/// Paths of ranks, each ended by -1.
pub fn parse(ints: &[i64]) -> Result<Vec<Vec<usize>>> {
    ensure!(ints.last() == Some(&-1), "the last path is not ended by -1");
    let mut paths: Vec<Vec<usize>> = vec![];
    for (at, path) in ints[..ints.len() - 1].split(|&rank| rank == -1).enumerate() {
        ensure!(!path.is_empty(), "path {at} is empty");
        let ranks: Option<Vec<usize>> = path.iter().map(|&rank| usize::try_from(rank).ok()).collect();
        let bad = path.iter().find(|rank| **rank < 0).unwrap_or(&0);
        paths.push(ranks.ok_or_else(|| anyhow::anyhow!("path {at} holds {bad}, ranks count from 0"))?);
    }
    let mut places = HashMap::new();
    for (at, path) in paths.iter().enumerate() {
        let before = places.insert(&path[..], at);
        ensure!(before.is_none(), "paths {} and {at} are the same", before.unwrap_or_default());
    }
    for (at, path) in paths.iter().enumerate() {
        let above = &path[..path.len() - 1];
        ensure!(above.is_empty() || places.contains_key(above), "path {at} has no parent: {above:?} is missing");
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paths of a plan.
    fn paths(plan: &Plan) -> Vec<Vec<usize>> {
        let mut paths: Vec<Vec<usize>> = vec![vec![]];
        for wish in plan.wishes() {
            let path = [&paths[wish.parent][..], &[wish.rank]].concat();
            assert_eq!(path.len(), wish.level + 1);
            paths.push(path);
        }
        paths.split_off(1)
    }

    #[test]
    fn a_grown_tree_has_the_best_nodes() {
        for accuracy in [
            vec![vec![0.6f32, 0.2, 0.1], vec![0.5, 0.2, 0.15], vec![0.4, 0.1, 0.0]],
            vec![vec![0.2, 0.5], vec![0.9; 16], vec![0.3, 0.3, 0.3]],
            vec![vec![1.0]; 5],
            vec![vec![0.0; 16]; 3],
        ] {
            let grown = paths(&Plan::grown(&accuracy));
            let chance = |path: &[usize]| -> f64 {
                path.iter().enumerate().map(|(level, &rank)| f64::from(accuracy[level][rank])).product()
            };
            // All there are.
            let mut all: Vec<Vec<usize>> = vec![vec![]];
            let mut begin = 0;
            for ranks in &accuracy {
                let end = all.len();
                for i in begin..end {
                    (0..ranks.len()).for_each(|rank| all.push([&all[i][..], &[rank]].concat()));
                }
                begin = end;
            }
            let mut chances: Vec<f64> = all[1..].iter().map(|path| chance(path)).collect();
            chances.sort_by(|a, b| b.total_cmp(a));
            chances.truncate(MOST);
            let mut got: Vec<f64> = grown.iter().map(|path| chance(path)).collect();
            assert!(got.is_sorted_by(|a, b| a >= b), "the best first: {got:?}");
            got.sort_by(|a, b| b.total_cmp(a));
            assert_eq!(got, chances, "{accuracy:?}");
            let mut distinct = grown.clone();
            distinct.sort();
            distinct.dedup();
            assert_eq!(distinct.len(), grown.len());
        }
    }

    #[test]
    fn a_fixed_tree_is_cut_to_what_heads_can_give() {
        let tree = parse(&[1, 0, -1, 0, -1, 1, -1, 0, 7, -1, 1, 0, 2, -1]).unwrap();
        let all = [vec![1], vec![1, 0], vec![0], vec![0, 7], vec![1, 0, 2]];
        assert_eq!(paths(&Plan::fixed(&tree, 5, 100)), all);
        assert_eq!(paths(&Plan::fixed(&tree, 2, 100)), all[..4]);
        assert_eq!(paths(&Plan::fixed(&tree, 1, 100)), [[0], [1]]);
        assert_eq!(paths(&Plan::fixed(&tree, 3, 7)), [&all[..3], &all[4..]].concat());
        let wide: Vec<Vec<usize>> = (0..500).map(|rank| vec![rank]).collect();
        assert_eq!(paths(&Plan::fixed(&wide, 3, 1000)), wide[..MOST]);
        let mut deep: Vec<Vec<usize>> = (1..500).map(|n| vec![0; n]).collect();
        deep.reverse();
        assert_eq!(paths(&Plan::fixed(&deep, 600, 10)).len(), MOST);
        assert_eq!(Plan::fixed(&deep, 600, 10), Plan::chain(600));
    }

    #[test]
    fn trees_that_are_none_are_refused() {
        for (ints, needle) in [
            (&[][..], "not ended by -1"),
            (&[0], "not ended by -1"),
            (&[-1], "path 0 is empty"),
            (&[0, -1, -1], "path 1 is empty"),
            (&[0, -1, 0, -2, -1], "path 1 holds -2"),
            (&[0, -1, 1, 0, -1], "path 1 has no parent: [1] is missing"),
            (&[0, -1, 1, -1, 0, -1], "paths 0 and 2 are the same"),
        ] {
            let error = parse(ints).unwrap_err().to_string();
            assert!(error.contains(needle), "{ints:?}: {error}");
        }
    }

    #[test]
    fn guessed_accuracies_descend_and_leave_something() {
        for first in [0.0, 0.1, 0.5, 0.9, 1.0] {
            let all: Vec<f64> = ranks(first).collect();
            assert!(all.len() == TOP && all.is_sorted_by(|a, b| a >= b) && all.iter().sum::<f64>() <= 1.0 + 1e-9);
        }
    }
}
