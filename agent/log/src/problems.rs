//! The problems there are now, and which of them are new or solved.

use std::collections::{BTreeMap, BTreeSet};

/// The problems of each subject that has some.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CurrentProblems<S, P = String>(BTreeMap<S, Vec<P>>);

/// Problems that came, and problems that went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference<P> {
    pub new: Vec<P>,
    pub solved: Vec<P>,
}

impl<S: Ord, P: Clone + Ord> CurrentProblems<S, P> {
    /// Replaces the problems of a subject.
    pub fn replace(&mut self, subject: S, now: Vec<P>) -> Difference<P> {
        let before = self.0.remove(&subject).unwrap_or_default();
        let difference = Difference::between(&before, &now);
        if !now.is_empty() {
            self.0.insert(subject, now);
        }
        difference
    }

    /// The problems of a subject.
    pub fn of(&self, subject: &S) -> &[P] {
        self.0.get(subject).map(Vec::as_slice).unwrap_or_default()
    }

    /// There are no other subjects any more.
    pub fn keep_only(&mut self, is_there: impl Fn(&S) -> bool) {
        self.0.retain(|subject, _| is_there(subject));
    }
}

impl<S, P> CurrentProblems<S, P> {
    pub fn iter(&self) -> impl Iterator<Item = (&S, &Vec<P>)> {
        self.0.iter()
    }

    /// The number of subjects that have some.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<S, P> Default for CurrentProblems<S, P> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<P: Clone + Ord> Difference<P> {
    /// Each problem once, in the order of the list that it is in.
    pub fn between(before: &[P], now: &[P]) -> Self {
        let missing = |of: &[P], than: &[P]| {
            let mut known: BTreeSet<_> = than.iter().collect();
            of.iter().filter(|problem| known.insert(problem)).cloned().collect()
        };
        Self { new: missing(now, before), solved: missing(before, now) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_and_what_went_is_told_of_each_subject() {
        let mut problems = CurrentProblems::default();
        let Difference { new, solved } = problems.replace("a", vec![2, 1, 2]);
        assert_eq!((new, solved), (vec![2, 1], vec![]));
        let Difference { new, solved } = problems.replace("a", vec![1, 3]);
        assert_eq!((new, solved), (vec![3], vec![2]));
        assert_eq!(problems.replace("b", vec![1]).new, [1]);
        assert_eq!(problems.replace("a", vec![]).solved, [1, 3]);
        assert_eq!(problems.len(), 1);
        problems.keep_only(|subject| *subject != "b");
        assert!(problems.is_empty());
    }
}
