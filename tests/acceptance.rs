//! Rules of acceptance by exact enumeration: every outcome of every die, with its probability. What is emitted must have
//! the target's distribution to 1e-12, for chains and trees, guesses that are fixed and guesses that are drawn; and the
//! same harness must find rules that are wrong in the ways other programs' were.

use foretoken::sample::Purpose;
use foretoken::spec::rejection::{Draws, rejection};
use foretoken::spec::round::Draft;
use foretoken::spec::typical::typical;
use foretoken::spec::verify::{Chance, Distribution, Verdict, walk};
use foretoken::tree::{DraftTree, NodeId, Token};
use std::collections::BTreeMap;

/// Dice that fall in every way there is, one way a run.
struct Explorer {
    /// Outcome taken at each decision of this run, and how many there were.
    decisions: Vec<(usize, usize)>,
    at: usize,
    weight: f64,
}

impl Explorer {
    /// Runs `run` once for each way the dice can fall. Gives what it returned with the probability of that.
    fn all<T>(mut run: impl FnMut(&mut Explorer) -> T) -> Vec<(T, f64)> {
        let mut explorer = Explorer { decisions: vec![], at: 0, weight: 1.0 };
        let mut results = vec![];
        loop {
            (explorer.at, explorer.weight) = (0, 1.0);
            let result = run(&mut explorer);
            results.push((result, explorer.weight));
            while let Some((taken, outcomes)) = explorer.decisions.pop() {
                if taken + 1 < outcomes {
                    explorer.decisions.push((taken + 1, outcomes));
                    break;
                }
            }
            if explorer.decisions.is_empty() {
                return results;
            }
        }
    }

    /// One of `outcomes` (probabilities above 0).
    fn decide(&mut self, outcomes: &[f64]) -> usize {
        if self.at == self.decisions.len() {
            self.decisions.push((0, outcomes.len()));
        }
        let (taken, _) = self.decisions[self.at];
        self.at += 1;
        self.weight *= outcomes[taken];
        taken
    }

    fn token(&mut self, distribution: &[(Token, f64)]) -> Token {
        let total: f64 = distribution.iter().map(|&(_, p)| p).sum();
        let shares: Vec<f64> = distribution.iter().map(|&(_, p)| p / total).collect();
        distribution[self.decide(&shares)].0
    }
}

impl Chance for Explorer {
    fn accept(&mut self, _: usize, _: usize, probability: f64) -> bool {
        assert!(probability >= 0.0, "{probability}");
        match probability {
            p if p >= 1.0 => true,
            0.0 => false,
            p => self.decide(&[p, 1.0 - p]) == 0,
        }
    }

    fn draw(&mut self, _: usize, _: Purpose, distribution: &[(Token, f64)]) -> Token {
        self.token(distribution)
    }
}

/// A model of few tokens: any distribution for any text. One in four tokens is impossible.
#[derive(Clone, Copy)]
struct Toy {
    vocab: u32,
    seed: u64,
}

impl Toy {
    fn after(&self, text: &[Token]) -> Distribution {
        let hash = text.iter().fold(self.seed, |h, &t| (h ^ u64::from(t + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let weight = |token: Token| {
            let bits = (hash ^ u64::from(token) << 32).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 40;
            (token, if bits % 4 == 0 && token > 0 { 0.0 } else { ((bits >> 8) % 997 + 1) as f64 })
        };
        let weights: Vec<(Token, f64)> = (0..self.vocab).map(weight).filter(|&(_, w)| w > 0.0).collect();
        let total: f64 = weights.iter().map(|&(_, w)| w).sum();
        weights.into_iter().map(|(t, w)| (t, w / total)).collect()
    }

    /// The distribution of the next `n` tokens.
    fn law(&self, context: &[Token], n: usize) -> BTreeMap<Vec<Token>, f64> {
        let mut law = BTreeMap::from([(vec![], 1.0)]);
        for _ in 0..n {
            let longer = law.iter().flat_map(|(text, p)| {
                let next = self.after(&[context, text].concat());
                next.into_iter().map(move |(token, q)| ([&text[..], &[token]].concat(), p * q))
            });
            law = longer.collect();
        }
        law
    }
}

/// Half of the sum of absolute differences.
fn total_variation(a: &BTreeMap<Vec<Token>, f64>, b: &BTreeMap<Vec<Token>, f64>) -> f64 {
    let keys: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
    let difference = |key| (a.get(key).unwrap_or(&0.0) - b.get(key).unwrap_or(&0.0)).abs();
    keys.into_iter().map(difference).sum::<f64>() / 2.0
}

fn text_to(tree: &DraftTree, context: &[Token], node: NodeId) -> Vec<Token> {
    let below = tree.path(node).into_iter().skip(1).map(|id| tree.nodes()[id].token);
    context.iter().copied().chain(below).collect()
}

/// What is done below every node of the tree, in order, to some depth.
#[derive(Clone, Copy, Debug)]
enum Guess {
    /// The likeliest `n` tokens of model 0 are pushed.
    Best(usize),
    /// `n` tokens are drawn from model `.0` without replacement.
    Drawn(usize, usize),
    /// The likeliest token of model `.0` counts as drawn: a point mass.
    Point(usize),
    /// Wrong: it counts as drawn from the whole distribution of model `.0`.
    SoftPoint(usize),
    /// Wrong: two are drawn without replacement and the second counts as drawn with it.
    Unconditional(usize),
}

struct Case {
    name: &'static str,
    depth: usize,
    guesses: &'static [Guess],
}

const CASES: &[Case] = &[
    Case { name: "nothing", depth: 0, guesses: &[] },
    Case { name: "chain of fixed guesses", depth: 3, guesses: &[Guess::Best(1)] },
    Case { name: "chain of drawn guesses", depth: 3, guesses: &[Guess::Drawn(1, 1)] },
    Case { name: "chain of point masses", depth: 3, guesses: &[Guess::Point(1)] },
    Case { name: "fixed tree", depth: 2, guesses: &[Guess::Best(2)] },
    Case { name: "drawn without replacement", depth: 2, guesses: &[Guess::Drawn(1, 2)] },
    Case { name: "drawn without replacement, one level", depth: 1, guesses: &[Guess::Drawn(1, 3)] },
    Case { name: "two drafters", depth: 1, guesses: &[Guess::Drawn(1, 1), Guess::Drawn(2, 1)] },
    Case { name: "two drafters, two each", depth: 1, guesses: &[Guess::Drawn(1, 2), Guess::Drawn(2, 2)] },
    Case { name: "fixed, then drawn", depth: 2, guesses: &[Guess::Best(1), Guess::Drawn(1, 1)] },
    Case { name: "everything", depth: 1, guesses: &[Guess::Best(2), Guess::Drawn(1, 2), Guess::Point(2)] },
];

/// A tree with all guesses below all nodes up to a depth.
fn draft(case: &Case, models: &[Toy; 3], context: &[Token], dice: &mut Explorer) -> Draft {
    let tree = DraftTree::new(context[context.len() - 1], DraftTree::MAX);
    let mut draft = Draft { pushed: 1, ..Draft::of(tree) };
    // What is pushed comes first everywhere, as it does in a round.
    for pushed in [true, false] {
        let mut node = 0;
        while node < draft.tree().nodes().len() {
            if (draft.tree().nodes()[node].depth as usize) < case.depth {
                let text = text_to(draft.tree(), context, node);
                for guess in case.guesses.iter().filter(|guess| matches!(guess, Guess::Best(_)) == pushed) {
                    add(&mut draft, node, *guess, models, &text, dice);
                }
            }
            node += 1;
        }
    }
    draft
}

fn add(draft: &mut Draft, parent: NodeId, guess: Guess, models: &[Toy; 3], text: &[Token], dice: &mut Explorer) {
    let by_share = |model: usize| {
        let mut all = models[model].after(text);
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        all
    };
    let mut drawn = |model: usize, n: usize, tree: &mut DraftTree| -> (Distribution, Vec<NodeId>) {
        let q = models[model].after(text);
        let (mut left, mut nodes) = (q.clone(), vec![]);
        for _ in 0..n.min(q.len()) {
            let token = dice.token(&left);
            left.retain(|&(t, _)| t != token);
            nodes.push(tree.push(parent, token, 0.0).expect("small trees"));
        }
        (q, nodes)
    };
    let tree = &mut draft.sketch.tree;
    match guess {
        Guess::Best(n) => {
            for (token, _) in by_share(0).into_iter().take(n) {
                draft.pushed |= 1 << tree.push(parent, token, 0.0).expect("small trees");
            }
        }
        Guess::Drawn(model, n) => {
            let (q, nodes) = drawn(model, n, tree);
            draft.draws.push(Draws { parent, q, nodes });
        }
        Guess::Point(model) => {
            let token = by_share(model)[0].0;
            let nodes = vec![tree.push(parent, token, 0.0).expect("small trees")];
            draft.draws.push(Draws { parent, q: vec![(token, 1.0)], nodes });
        }
        Guess::SoftPoint(model) => {
            let nodes = vec![tree.push(parent, by_share(model)[0].0, 0.0).expect("small trees")];
            draft.draws.push(Draws { parent, q: models[model].after(text), nodes });
        }
        Guess::Unconditional(model) => {
            let (q, nodes) = drawn(model, 2, tree);
            draft.draws.extend(nodes.into_iter().map(|node| Draws { parent, q: q.clone(), nodes: vec![node] }));
        }
    }
}

type Rule = fn(&Draft, Toy, &[Token], &mut Explorer) -> Verdict;

fn by_rejection(draft: &Draft, target: Toy, context: &[Token], dice: &mut Explorer) -> Verdict {
    rejection(draft, |node| Ok(target.after(&text_to(draft.tree(), context, node))), dice).unwrap()
}

fn by_walk(draft: &Draft, target: Toy, context: &[Token], dice: &mut Explorer) -> Verdict {
    walk(draft.tree(), |node| Ok(dice.token(&target.after(&text_to(draft.tree(), context, node))))).unwrap()
}

fn by_typical(draft: &Draft, target: Toy, context: &[Token], dice: &mut Explorer) -> Verdict {
    typical(draft.tree(), |node| Ok(target.after(&text_to(draft.tree(), context, node))), dice).unwrap()
}

/// Wrong: the target is sampled anew for every child.
fn sample_per_child(draft: &Draft, target: Toy, context: &[Token], dice: &mut Explorer) -> Verdict {
    let mut verdict = Verdict { path: vec![0], tokens: vec![] };
    let nodes = draft.tree().nodes();
    'down: loop {
        let node = verdict.path[verdict.path.len() - 1];
        let p = target.after(&text_to(draft.tree(), context, node));
        for child in (node + 1..nodes.len()).filter(|&id| nodes[id].parent == node) {
            if dice.token(&p) == nodes[child].token {
                verdict.path.push(child);
                verdict.tokens.push(nodes[child].token);
                continue 'down;
            }
        }
        verdict.tokens.push(dice.token(&p));
        return verdict;
    }
}

/// Wrong: the token after an accepted leaf is drawn from another distribution (one without the sampler's stages).
fn plain_bonus(draft: &Draft, target: Toy, context: &[Token], dice: &mut Explorer) -> Verdict {
    let is_leaf = |node| draft.tree().nodes().iter().skip(1).all(|n| n.parent != node);
    let distribution = |node| {
        let p = target.after(&text_to(draft.tree(), context, node));
        let mut flat: Distribution =
            if node > 0 && is_leaf(node) { p.iter().map(|&(t, p)| (t, p.powf(0.7))).collect() } else { p };
        let total: f64 = flat.iter().map(|&(_, p)| p).sum();
        flat.iter_mut().for_each(|(_, p)| *p /= total);
        Ok(flat)
    };
    rejection(draft, distribution, dice).unwrap()
}

/// The distribution of the first `n` tokens when rounds of drafting and verifying go on until there are as many, and
/// the tokens of the first round on average.
fn emitted(case: &Case, rule: Rule, models: &[Toy; 3], n: usize) -> (BTreeMap<Vec<Token>, f64>, f64) {
    let (mut law, mut first) = (BTreeMap::new(), 0.0);
    let runs = Explorer::all(|dice| {
        let (mut text, mut first) = (vec![0], None);
        while text.len() <= n {
            let draft = draft(case, models, &text, dice);
            let verdict = rule(&draft, models[0], &text, dice);
            assert_eq!(verdict.path.len(), verdict.tokens.len());
            let last = verdict.path[verdict.path.len() - 1];
            assert_eq!(draft.tree().path(last), verdict.path);
            let accepted = verdict.path[1..].iter().map(|&id| draft.tree().nodes()[id].token);
            assert!(accepted.eq(verdict.tokens[..verdict.tokens.len() - 1].iter().copied()));
            text.extend(&verdict.tokens);
            first.get_or_insert(verdict.tokens.len());
        }
        (text[1..=n].to_vec(), first.unwrap())
    });
    for ((text, tokens), weight) in runs {
        *law.entry(text).or_insert(0.0) += weight;
        first += weight * tokens as f64;
    }
    (law, first)
}

/// Target and drafters. Model 0 is the target and also what fixed guesses come from, which makes them good.
fn worlds(vocab: u32) -> impl Iterator<Item = [Toy; 3]> {
    (1..5u64)
        .map(move |seed| [0, 1, 2].map(|i| Toy { vocab, seed: seed * 1000 + if i == 2 && seed == 4 { 0 } else { i } }))
}

/// Tokens compared: as many as the enumeration can bear.
fn horizon(vocab: u32, case: &Case) -> usize {
    match (vocab, case.guesses.len()) {
        (3, 0..=1) if case.depth == 3 => 4,
        (3, _) => 2,
        (4..=5, 0..=1) if case.depth <= 1 => 2,
        _ => 1,
    }
}

#[test]
fn exact_and_rejection_keep_the_distribution() {
    let mut worst: f64 = 0.0;
    for vocab in 3..=8 {
        for models in worlds(vocab) {
            for case in CASES.iter().filter(|case| vocab <= 4 || case.depth <= 1) {
                let n = horizon(vocab, case);
                let want = models[0].law(&[0], n);
                for (rule_name, rule) in [("exact", by_walk as Rule), ("rejection", by_rejection)] {
                    let (law, _) = emitted(case, rule, &models, n);
                    let difference = total_variation(&law, &want);
                    worst = worst.max(difference);
                    assert!(difference < 1e-12, "{rule_name}, {}, {vocab} tokens: {difference:e}", case.name);
                }
            }
        }
    }
    println!("largest total variation: {worst:e}");
}

#[test]
fn rejection_accepts_more_of_what_is_drawn() {
    let case = &CASES[2];
    for models in worlds(4) {
        let (_, exact) = emitted(case, by_walk, &models, 1);
        let (_, rejected) = emitted(case, by_rejection, &models, 1);
        assert!(rejected > exact, "{rejected} {exact}");
        // A drafter that is the target is never refused.
        let same = [models[0]; 3];
        let (_, all) = emitted(case, by_rejection, &same, 1);
        assert!((all - (case.depth + 1) as f64).abs() < 1e-12, "{all}");
    }
}

/// Each of these was found in some program. The harness must see them.
#[test]
fn wrong_rules_are_found() {
    let soft = Case { name: "soft", depth: 1, guesses: &[Guess::SoftPoint(1)] };
    let unconditional = Case { name: "unconditional", depth: 1, guesses: &[Guess::Unconditional(1)] };
    let two = Case { name: "two", depth: 1, guesses: &[Guess::Best(2)] };
    let chain = Case { name: "chain", depth: 1, guesses: &[Guess::Best(1)] };
    let table: [(&str, &Case, Rule); 5] = [
        ("the likeliest token tested as if drawn", &soft, by_rejection),
        ("drawn without replacement, tested as if with", &unconditional, by_rejection),
        ("a sample for every path", &two, sample_per_child),
        ("the last token without the sampler's stages", &chain, plain_bonus),
        ("typical, which says so", &two, by_typical),
    ];
    for (name, case, rule) in table {
        let found = worlds(5).map(|models| {
            let (law, _) = emitted(case, rule, &models, 2);
            total_variation(&law, &models[0].law(&[0], 2))
        });
        let largest = found.fold(0.0, f64::max);
        println!("{name}: {largest:.4}");
        assert!(largest > 1e-3, "{name}: not found, {largest:e}");
    }
}

/// The worked example of a single position, with its total variations.
#[test]
fn the_worked_example_comes_out() {
    const P: [f64; 6] = [0.34, 0.26, 0.18, 0.12, 0.07, 0.03];
    const Q: [f64; 6] = [0.10, 0.42, 0.05, 0.25, 0.15, 0.03];
    let distribution = |x: &[f64; 6]| -> Distribution { (0..).zip(x.iter().copied()).collect() };
    let variation = |law: &[(Verdict, f64)]| {
        let mut p = P;
        law.iter().for_each(|(verdict, weight)| p[verdict.tokens[0] as usize] -= weight);
        p.iter().map(|x| x.abs()).sum::<f64>() / 2.0
    };
    let tried = |make: fn(&mut Explorer, &mut DraftTree, &Distribution) -> Vec<Draws>| {
        Explorer::all(|dice| {
            let (p, q) = (distribution(&P), distribution(&Q));
            let mut tree = DraftTree::new(0, 9);
            let draws = make(dice, &mut tree, &q);
            let draft = Draft { pushed: 1, draws, ..Draft::of(tree) };
            // Whatever follows an accepted guess, its own probability is that of being emitted.
            rejection(&draft, |_| Ok(p.clone()), dice).unwrap()
        })
    };
    let one = tried(|dice, tree, q| {
        let node = tree.push(0, dice.token(q), 0.0).unwrap();
        vec![Draws { parent: 0, q: q.clone(), nodes: vec![node] }]
    });
    assert!(variation(&one) < 1e-12);
    let accepted: f64 = one.iter().filter(|(verdict, _)| verdict.path.len() > 1).map(|(_, weight)| weight).sum();
    assert!((accepted - 0.63).abs() < 1e-12, "{accepted}");
    let soft = tried(|_, tree, q| {
        let node = tree.push(0, 1, 0.0).unwrap();
        vec![Draws { parent: 0, q: q.clone(), nodes: vec![node] }]
    });
    assert!((variation(&soft) - 0.359).abs() < 1e-4, "{}", variation(&soft));
}
