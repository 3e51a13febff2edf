//! Measurements and what is made of them. Absolute numbers of a shared machine wander by a third;
//! ratios of neighbours in time do not. So all comparison is of pairs within a round.

use std::time::Duration;

use super::random::Random;
use super::workload::Workload;

/// One run of one workload against one proxy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// CPU time of the proxy per request, in microseconds.
    pub(super) cpu: f64,
    pub(super) rate: f64,
    pub(super) p50: Duration,
    pub(super) p99: Duration,
    pub(super) failed: u64,
    /// Resident memory in MB.
    pub(super) memory: f64,
    /// CPU time that others had meanwhile, in percent of both CPUs.
    pub(super) foreign: f64,
}

/// Measurements of each proxy that are asked for.
pub(super) struct Rounds {
    pub(super) count: usize,
    pub(super) duration: Duration,
    /// The most of both CPUs that others may have had, in percent.
    pub(super) foreign: f64,
}

/// One workload's samples, by proxy, then by round. Portcullis is the first proxy.
pub(super) struct Measured {
    pub(super) workload: &'static Workload,
    pub(super) samples: Vec<Vec<Sample>>,
    /// Rounds that were disturbed.
    pub(super) dropped: usize,
    /// The share of requests of HTTP/1 that the agent's HTTP library read.
    pub(super) by_library: Option<f64>,
}

/// A median, and where 95 % of bootstrapped medians lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Interval {
    pub(super) median: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Measured {
    pub(super) fn new(workload: &'static Workload, proxies: usize) -> Self {
        Self { workload, samples: vec![Vec::new(); proxies], dropped: 0, by_library: None }
    }

    /// Rounds of which there are samples.
    pub(super) fn kept(&self) -> usize {
        self.samples[0].len()
    }

    /// True of a proxy that serves the workload.
    pub(super) fn has(&self, proxy: usize) -> bool {
        !self.samples[proxy].is_empty()
    }

    pub(super) fn values(&self, proxy: usize, of: fn(&Sample) -> f64) -> Vec<f64> {
        self.samples[proxy].iter().map(of).collect()
    }

    /// Portcullis ÷ a proxy.
    pub(super) fn compared(&self, proxy: usize, of: fn(&Sample) -> f64) -> Option<Interval> {
        self.has(proxy).then(|| ratio(&self.values(0, of), &self.values(proxy, of)))
    }

    /// A proxy in this workload ÷ the same in another.
    pub(super) fn against(&self, other: &Self, proxy: usize, of: fn(&Sample) -> f64) -> Interval {
        ratio(&self.values(proxy, of), &other.values(proxy, of))
    }
}

pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match (values.len(), values.len() / 2) {
        (0, _) => f64::NAN,
        (length, middle) if length % 2 == 0 => f64::midpoint(values[middle - 1], values[middle]),
        (_, middle) => values[middle],
    }
}

/// Of pairs of the same round.
pub(super) fn ratio(ours: &[f64], theirs: &[f64]) -> Interval {
    interval(ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect())
}

pub(super) fn interval(values: Vec<f64>) -> Interval {
    const RESAMPLES: usize = 2000;
    let mut random = Random::new();
    let mut medians: Vec<_> = (0..RESAMPLES)
        .map(|_| median((0..values.len()).map(|_| values[random.below(values.len())]).collect()))
        .collect();
    medians.sort_by(f64::total_cmp);
    Interval {
        low: medians[RESAMPLES / 40],
        high: medians[RESAMPLES - RESAMPLES / 40 - 1],
        median: median(values),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn ratios_are_of_pairs() {
        // The machine gets twice as slow from round to round; the ratio stays.
        let ratio = ratio(&[1.0, 2.0, 4.0], &[2.0, 4.0, 8.0]);
        assert_eq!(ratio, Interval { median: 0.5, low: 0.5, high: 0.5 });
    }
}
