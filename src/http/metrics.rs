//! The service's own figures, in Prometheus's text format.

use prometheus::{
    Encoder, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

use crate::services::error::ServiceError;

/// Upper edges of the buckets, in seconds.
const SECONDS: [f64; 11] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];

/// One more of something, until this is dropped, however that comes about.
pub(super) struct Counted(IntGauge);

impl Counted {
    pub(super) fn in_gauge(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// All figures.
pub(super) struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    seconds: HistogramVec,
    refused: IntCounterVec,
    pub(super) in_flight: IntGauge,
    pub(super) imports: IntGauge,
    pub(super) pending: IntGauge,
    pub(super) outbox: IntGauge,
}

fn failed(error: &prometheus::Error) -> ServiceError {
    ServiceError::File { file: "metrics".to_owned(), reason: error.to_string() }
}

impl Metrics {
    /// # Errors
    /// Never for the names that stand here.
    pub(super) fn new(is_demo: bool) -> Result<Self, ServiceError> {
        let make = || -> Result<Self, prometheus::Error> {
            let registry = Registry::new();
            let labels = ["method", "route", "status"];
            let requests = Opts::new("fatia_http_requests_total", "Requests that were answered.");
            let requests = IntCounterVec::new(requests, &labels)?;
            let seconds = HistogramOpts::new(
                "fatia_http_request_duration_seconds",
                "Time from a request's head to its answer.",
            );
            let seconds = HistogramVec::new(seconds.buckets(SECONDS.to_vec()), &["method", "route"])?;
            let refused = Opts::new(
                "fatia_http_requests_refused_total",
                "Requests that were refused before they were looked at, by cause.",
            );
            let refused = IntCounterVec::new(refused, &["cause"])?;
            let gauge = |name: &str, help: &str| IntGauge::with_opts(Opts::new(name, help));
            let in_flight = gauge("fatia_http_requests_in_flight", "Requests that are being answered.")?;
            let imports = gauge("fatia_imports_running", "Uploaded imports that this process is at.")?;
            let pending =
                gauge("fatia_derivation_marks_pending", "Marks that wait to be derived, of all processes.")?;
            let outbox =
                gauge("fatia_outbox_messages_waiting", "Messages that are to leave, of all processes.")?;
            let info = IntGaugeVec::new(Opts::new("fatia_build_info", "The running version."), &["version"])?;
            info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
            let demo = gauge("fatia_demo", "1 where all data of the installation is made up, else 0.")?;
            demo.set(is_demo.into());
            registry.register(Box::new(demo))?;
            registry.register(Box::new(requests.clone()))?;
            registry.register(Box::new(seconds.clone()))?;
            registry.register(Box::new(refused.clone()))?;
            registry.register(Box::new(info))?;
            for each in [&in_flight, &imports, &pending, &outbox] {
                registry.register(Box::new(each.clone()))?;
            }
            Ok(Self { registry, requests, seconds, refused, in_flight, imports, pending, outbox })
        };
        make().map_err(|error| failed(&error))
    }

    /// Counts an answer.
    pub(super) fn answered(&self, method: &str, route: &str, status: u16, micros: i64) {
        self.requests.with_label_values(&[method, route, status.to_string().as_str()]).inc();
        // Prometheus counts seconds in floating point; nothing that is billed is among them.
        let seconds = i32::try_from(micros.max(0)).map_or(f64::from(i32::MAX), f64::from) / 1e6;
        self.seconds.with_label_values(&[method, route]).observe(seconds);
    }

    /// Counts a request that was refused early.
    pub(super) fn refused(&self, cause: &str) {
        self.refused.with_label_values(&[cause]).inc();
    }

    /// All figures as text.
    pub(super) fn text(&self) -> Result<String, ServiceError> {
        let mut out = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut out).map_err(|error| failed(&error))?;
        Ok(String::from_utf8(out).unwrap_or_default())
    }
}
