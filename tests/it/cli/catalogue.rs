//! The catalogue as its users load and read it.

use super::program::Fatia;

const INVENTORY: &str = "node,gpu_uuid,gpu_model,in_service_from,in_service_to\n\
                         n1,GPU-a,A10,2026-09-01T00:00:00Z,2026-09-03T00:00:00Z\n";
const NOBODY: &str = "workload,node,gpu_uuid,mode,start,end\n";
const GOOD: &str = "[[board]]\nkey = \"H100-94GB\"\nnames = [\"NVIDIA H100\"]\nbaseline_milliwatts = 71500\n";

fn load(fatia: &Fatia, text: &str) -> super::program::Ran {
    fatia.write("catalogue.toml", text);
    fatia.run(&["catalogue", "load", "catalogue.toml"])
}

#[test]
fn the_catalogue_is_shown_with_its_sources() {
    let fatia = Fatia::new();
    let all = fatia.run(&["catalogue", "show"]).good().out;
    assert!(all.starts_with("embedded catalogue\n"), "{all}");
    for part in ["RTX-PRO-6000-Blackwell-96GB", "7g.180gb", "H200X-141C", "not known", "recalled"] {
        assert!(all.contains(part), "{part} is not in:\n{all}");
    }
    // One model alone, by any of its names.
    let one = fatia.run(&["catalogue", "show", "--model", "nvidia a100 80gb pcie"]).good().out;
    let line = one.lines().find(|line| line.contains("3g.40gb")).expect("a profile");
    let cells: Vec<&str> = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    assert_eq!(cells[..7], ["A100-80GB", "3g.40gb", "3/7", "4/8", "0 4", "2", "documented"]);
    assert!(!one.contains("H100") && !one.contains("vGPU"), "{one}");
    let types = fatia.run(&["catalogue", "show", "--model", "h100xm"]).good().out;
    assert!(types.contains("H100XM-20C") && !types.contains("starts"), "{types}");
    fatia
        .run(&["catalogue", "show", "--model", "MI300X"])
        .ended(1)
        .told(&["catalogue: knows no board `MI300X`"]);
}

#[test]
fn a_file_is_loaded_once_and_its_faults_are_named() {
    let fatia = Fatia::new();
    fatia.import_all(INVENTORY, NOBODY, &[]);
    let before = fatia.report("2026-09", "day", "json");
    fatia.run(&["catalogue", "show", "--model", "NVIDIA H100"]).ended(1).told(&["knows no board"]);
    load(&fatia, GOOD).good().told(&["catalogue revision 1, 1 boards, 0 profiles, 0 vGPU types", "loaded"]);
    load(&fatia, &format!("# again\n{GOOD}")).good().told(&["catalogue revision 1", "nothing changed"]);
    let shown = fatia.run(&["catalogue", "show", "--model", "NVIDIA H100"]).good().out;
    assert!(shown.starts_with("embedded catalogue with revision 1 over it, loaded "), "{shown}");
    assert!(shown.contains("71500") && shown.contains("1g.12gb"), "{shown}");

    let check = |from: &str, to: &str, part: &str| {
        assert!(GOOD.contains(from), "{from}");
        load(&fatia, &GOOD.replacen(from, to, 1)).ended(1).told(&["fatia: catalogue.toml: ", part]);
    };
    check("71500", "71.5", "baseline_milliwatts = 71.5");
    check("[[board]]", "[[boards]]", "unknown field `boards`");
    check("NVIDIA H100", "H100-80GB", "board `H100-94GB`: names `H100-80GB` is the key of another board");
    check("H100-94GB", "H100-95GB", "board `H100-95GB`: memory_mib is missing");
    fatia.run(&["catalogue", "load", "nowhere.toml"]).ended(1).told(&["nowhere.toml: cannot be read"]);

    load(&fatia, "").good().told(&["catalogue revision 2, 0 boards"]);
    fatia.run(&["catalogue", "show", "--model", "NVIDIA H100"]).ended(1);
    assert_eq!(fatia.report("2026-09", "day", "json"), before);
    let doctor = fatia.run(&["doctor"]).good();
    assert!(!doctor.out.contains("WRONG"), "{doctor}");
}

#[test]
fn the_file_in_the_manual_can_be_loaded() {
    let manual = include_str!("../../../MANUAL.md");
    let section = manual.split("## Catalogue").nth(1).expect("the section");
    let example =
        section.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a file");
    let fatia = Fatia::new();
    load(&fatia, example).good().told(&["revision 1, 1 boards, 1 profiles, 1 vGPU types", "loaded"]);
    let shown = fatia.run(&["catalogue", "show", "--model", "nvidia a100-sxm-64gb"]).good().out;
    assert!(shown.contains("A100-64GB") && shown.contains("1g.8gb"), "{shown}");
}
