//! The share of HTTP/1 requests that the agent left to its HTTP library, by the agent's metrics:
//! the workloads of HTTP/1 are to measure its own code.

use anyhow::{Context, Result, bail};

use super::peers::Running;

/// Counters of an agent.
pub(super) struct Counters {
    requests: f64,
    by_library: f64,
}

impl Counters {
    pub(super) fn read(running: &Running) -> Result<Self> {
        match running {
            Running::Agent(agent) => Self::parse(&agent.get("/metrics")?),
            Running::Process(_) => bail!("the first proxy is no agent"),
        }
    }

    fn parse(metrics: &str) -> Result<Self> {
        // Each listener and status class has a line of its own, once there was one.
        let requests = metrics.lines().filter_map(|line| {
            line.strip_prefix("http_server_requests_total{")?.rsplit_once(' ')?.1.parse::<f64>().ok()
        });
        let name = "portcullis_http1_by_library_total ";
        let by_library = metrics.lines().find_map(|line| line.strip_prefix(name)?.parse().ok());
        let by_library = by_library.with_context(|| format!("the agent has no metric {name}"))?;
        Ok(Self { requests: requests.sum(), by_library })
    }

    /// The library's share of the requests since earlier ones.
    pub(super) fn share_since(&self, earlier: &Self) -> f64 {
        (self.by_library - earlier.by_library) / (self.requests - earlier.requests).max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(good: u32, bad: u32, by_library: u32) -> Counters {
        let text = format!(
            "# TYPE http_server_requests_total counter\n\
             http_server_requests_total{{listener=\"http\",http_response_status_class=\"2xx\"}} {good}\n\
             http_server_requests_total{{listener=\"http\",http_response_status_class=\"5xx\"}} {bad}\n\
             http_server_requests_unrouted_total 7\n\
             portcullis_http1_by_library_total {by_library}\n"
        );
        Counters::parse(&text).unwrap()
    }

    #[test]
    fn a_share_is_of_the_requests_in_between() {
        assert_eq!(metrics(290, 15, 4).share_since(&metrics(100, 5, 2)), 0.01);
        assert_eq!(metrics(100, 5, 2).share_since(&metrics(100, 5, 2)), 0.0);
    }

    #[test]
    fn an_agent_may_have_had_no_request_but_has_the_counter() {
        assert_eq!(Counters::parse("portcullis_http1_by_library_total 0\n").unwrap().requests, 0.0);
        assert!(Counters::parse("http_server_requests_total{listener=\"http\"} 1\n").is_err());
    }
}
