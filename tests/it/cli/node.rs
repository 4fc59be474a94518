//! The commands of a GPU host: what would be reported, and what is missing.

use std::time::Duration;

use super::program::Fatia;
use crate::support::nvml::Sim;

const HOST: &str = r#"
start = "2026-06-01T00:00:00Z"
driver = "580.95.05"

[[board]]
type = "H100-80GB"
uuid = "GPU-1"
power_mw = 300000
mig = true
mig_pending = true
persistence = false
activity = [{ metric = 2, gi = 9, value = 25.0 }]

[[board.instance]]
gi = 9
profile = "3g.40gb"
start = 4
compute = [{ uuid = "MIG-1", slot = 0 }]

[[board]]
type = "L4"
uuid = "GPU-2"
persistence = true
"#;

#[test]
fn what_a_host_would_report_is_printed_and_nothing_is_sent_or_written() {
    let sim = Sim::new(HOST, "2026-06-01T01:00:00Z");
    let fatia = Fatia::new();
    let library = sim.library().display().to_string();
    let command = ["agent", "--dry-run", "--node", "gpu-7", "--every-ms", "200", "--nvml-library", &library];
    let running = fatia.start(&command);
    // Time passes on the simulated host while it looks.
    for _ in 0..40 {
        sim.pass(100_000);
        std::thread::sleep(Duration::from_millis(20));
    }
    let ran = running.finish().good();
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines[0], "gpu-7: 2 GPUs, driver 580.95.05", "{ran}");
    assert!(
        lines.iter().any(|line| line.starts_with("GPU 0  NVIDIA H100 80GB HBM3  81920 MiB  GPU-1")),
        "{ran}"
    );
    assert!(lines.iter().any(|line| line.starts_with("  mig  3g.40gb at 4  MIG-1  nobody")), "{ran}");
    assert!(lines.iter().any(|line| line.starts_with("GPU 1  NVIDIA L4")), "{ran}");
    assert_eq!(lines.last(), Some(&"Nothing was sent."), "{ran}");
    assert!(!fatia.path("data/agent").exists(), "nothing was written");
}

#[test]
fn a_host_without_nvml_is_told_what_would_help_and_fails_no_dry_run() {
    let fatia = Fatia::new();
    let nowhere =
        ["agent", "--dry-run", "--node", "gpu-7", "--every-ms", "10", "--nvml-library", "nowhere.so"];
    let ran = fatia.run(&nowhere).good();
    assert!(ran.out.starts_with("NVML is not installed. Install NVIDIA's driver"), "{ran}");
    assert!(ran.out.contains("gpu-7: 0 GPUs, no driver"), "{ran}");
    let checked = fatia.run(&["agent", "--check", "--nvml-library", "nowhere.so"]).ended(1);
    assert!(checked.out.starts_with("error    library      NVML is not installed\n"), "{checked}");
    assert!(checked.out.contains("holds no agent"), "{checked}");
    let doctor = fatia.run(&["doctor", "--node"]).ended(1);
    assert!(doctor.out.contains("library") && !fatia.path("data/fatia.db").exists(), "{doctor}");
}

#[test]
fn a_checkup_names_what_a_gpu_lacks_and_the_remedy() {
    let sim = Sim::new(&HOST.replace("driver =", "privileged = false\ndriver ="), "2026-06-01T01:00:00Z");
    let fatia = Fatia::new();
    let library = sim.library().display().to_string();
    let ran = fatia.run(&["agent", "--check", "--nvml-library", &library]).ended(1);
    let told = |text: &str| assert!(ran.out.contains(text), "{text}: {ran}");
    told("ok       library      NVML answers, driver 580.95.05");
    told("ok       gpu          GPU 0 NVIDIA H100 80GB HBM3 GPU-1");
    told("warning  mig          GPU 0: on; where its instances lie cannot be read");
    told("warning  persistence  GPU 0: off");
    told("Run nvidia-persistenced");
    assert!(!ran.out.contains("persistence  GPU 1"), "{ran}");
    let waiting = HOST.replace("mig_pending = true", "mig_pending = false");
    let sim = Sim::new(&waiting, "2026-06-01T01:00:00Z");
    let library = sim.library().display().to_string();
    let ran = fatia.run(&["agent", "--check", "--nvml-library", &library]).ended(1);
    assert!(ran.out.contains("GPU 0: another mode waits for a reset"), "{ran}");
}

#[test]
fn help_is_that_of_the_agents_own_program() {
    let fatia = Fatia::new();
    let ran = fatia.run(&["agent", "--help"]).good();
    assert!(ran.out.contains("Usage: fatia agent [OPTIONS]") && ran.out.contains("--nvml-library"), "{ran}");
    fatia.run(&["agent", "--colour"]).ended(2).told(&["'--colour'"]);
    fatia
        .run(&["agent", "--replay", "2026-06-01T00:00:00Z/2026-06-02T00:00:00Z"])
        .ended(2)
        .told(&["--fleet"]);
}
