//! Who may do what, over the whole route table: a committed table, reviewed like code.
//!
//! Every route is asked by everybody, with the objects of tenant `acme` in its path. What is answered is compared with
//! `tests/fixtures/api/access.txt`; a route that is new, and has no line there, fails.

use std::fmt::Write as _;

use fatia::domain::access::Permission;
use fatia::http::{Access, ROUTES, Route};
use serde_json::json;

use crate::support::api::{Answer, Api};
use crate::support::platform::{TestPlatform, on_both_databases};

/// Everybody, in the order of the table's columns. The operator comes last, since it changes what the others would see.
const WHO: [&str; 7] = ["nobody", "agent", "enforcer", "beta", "acme", "finance", "admin"];

/// A public key of which nobody has the other half.
const SOME_KEY: &str = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";

/// Words that belong to `beta` or to the platform, and must never reach `acme`.
const FOREIGN: [&str; 6] = ["beta", "hidden-project", "w-secret", "n-secret", "g-secret", "unmapped"];

/// An installation with two tenants, each with something of everything.
pub async fn two_tenants(platform: &TestPlatform) -> (Api, Vec<(&'static str, String)>) {
    platform
        .import(
            "n-shared g-shared A10 06-01T00:00 06-05T00:00
             n-secret g-secret A10 06-01T00:00 06-05T00:00",
            "w-acme acme/vision n-shared g-shared mps:500000 06-01T00:00 06-02T00:00
             w-secret beta/hidden-project n-secret g-secret dedicated 06-01T00:00 06-03T00:00
             w-secret beta/hidden-project n-shared g-shared mps:250000 06-01T00:00 06-02T00:00",
        )
        .await;
    let book = "name = \"june\"\ncurrency = \"USD\"\neffective_from = \"2026-06-01T00:00:00Z\"\n[cost]\nA10 = \"1\"\n";
    fatia::services::pricing::load(platform, "june.toml", book).await.expect("a good book");
    platform.derive().await;
    let api = Api::of(platform);
    let rule = json!({
        "order": 10, "tenant": "beta", "project": "hidden-project",
        "conditions": [{ "field": "namespace", "comparison": "equal", "value": "n-secret" }],
    });
    api.post("/api/v1/mapping-rules", &rule).await.is(201);
    let mut tokens = vec![("nobody", String::new())];
    for role in ["agent", "enforcer"] {
        tokens.push((role, api.token(role, None).await));
    }
    for tenant in ["beta", "acme"] {
        tokens.push((tenant, api.token("tenant", Some(tenant)).await));
    }
    tokens.push(("finance", api.token("finance", None).await));
    tokens.push(("admin", api.token("admin", None).await));
    assert_eq!(tokens.iter().map(|(who, _)| *who).collect::<Vec<_>>(), WHO);
    (api, tokens)
}

/// A path with the objects that are there in the place of its parameters.
fn filled(path: &str, token: &str) -> String {
    path.replace("{tenant}", "acme")
        .replace("{project}", "vision")
        .replace("{rule}", "1")
        .replace("{name}", "june")
        .replace("{node}", "n-shared")
        .replace("{pool}", "none-there")
        .replace("{device}", "g-shared")
        .replace("{import}", "none-there")
        .replace("{token}", token)
        .replace("{agent}", "none-there")
        .replace("{file}", "docs.js")
}

async fn ask(api: &Api, route: &Route, who: &str, token: &str, some_token: &str) -> Answer {
    let mut path = filled(route.path, some_token);
    match route.operation {
        "reportCosts" => path.push_str("?period=2026-06"),
        "listWindows" => path.push_str("?node=n-shared&from=2026-06-01T00:00:00Z&to=2026-06-05T00:00:00Z"),
        _ => {}
    }
    let mut ask = api.ask(route.method.word(), &path);
    if who != "nobody" {
        ask = ask.token(token);
    }
    // It fits nothing, so that what belongs to `beta` stays its own.
    let rule = json!({
        "order": 20, "tenant": "acme", "project": "vision",
        "conditions": [{ "field": "user", "comparison": "equal", "value": "no one" }],
    });
    let ask = match route.operation {
        "createTenant" => ask.json(&json!({ "name": format!("new-{who}") })),
        "createProject" => ask.json(&json!({ "name": format!("new-{who}") })),
        "createMappingRule" => ask.json(&rule),
        "replaceMappingRule" => ask.header("If-Match", "*").json(&rule),
        "removeMappingRule" => ask.header("If-Match", "*"),
        "publishPriceBook" => ask.json(&json!({
            "name": format!("new-{who}"), "currency": "USD", "cost": { "A10": "2" },
            "effective_from": if who == "admin" { "2025-01-01T00:00:00Z" } else { "2025-02-01T00:00:00Z" },
            "effective_to": if who == "admin" { "2025-02-01T00:00:00Z" } else { "2025-03-01T00:00:00Z" },
        })),
        "loadCatalogue" => ask.body("application/toml", ""),
        "declareStates" => ask.json(&json!({ "states": [
            { "node": "n-shared", "kind": "maintenance", "from": "2026-06-04T00:00:00Z", "to": "2026-06-04T01:00:00Z" },
        ] })),
        "bringInventory" => ask.json(&json!({ "devices": [{
            "node": "n-new", "gpu_uuid": "g-new", "gpu_model": "A10", "in_service_from": "2026-06-04T00:00:00Z",
            "in_service_to": "2026-06-05T00:00:00Z",
        }] })),
        "uploadImport" => {
            let form = reqwest::multipart::Form::new();
            let inventory = "node,gpu_uuid,gpu_model,in_service_from\n";
            let intervals = "workload,node,gpu_uuid,mode,start\n";
            ask.form(form.text("inventory", inventory).text("intervals", intervals))
        }
        "createToken" => ask.json(&json!({ "name": "made", "role": "agent" })),
        "createEnrolmentToken" => ask.json(&json!({ "nodes": "n-*" })),
        "enrol" => ask.json(&json!({ "token": "none", "node": "n-x", "public_key": SOME_KEY, "version": "1" })),
        "putInventory" => ask.json(&json!({ "counter": 1, "at": 1, "version": "1", "devices": [] })),
        "sendBatch" => ask.body("application/octet-stream", "none"),
        "sendSkip" => ask.json(&json!({ "from": 1, "to": 1, "reason": "none" })),
        _ => ask,
    };
    ask.send().await
}

on_both_databases! {
    async fn everybody_is_answered_as_the_committed_table_says(platform: &TestPlatform) {
        let (api, tokens) = two_tenants(platform).await;
        // Somebody's token, for the routes about tokens.
        let some = api.token("agent", None).await;
        let some = some.split('_').nth(1).expect("an id").to_owned();
        let mut table = format!("{:<7}{:<52}{}\n", "", "", WHO.join(" "));
        for route in ROUTES {
            let mut line = format!("{:<7}{:<52}", route.method.word(), route.path);
            for (who, token) in &tokens {
                let answer = ask(&api, route, who, token, &some).await;
                write!(line, "{:<width$} ", answer.status, width = who.len()).unwrap();
                if *who == "acme" {
                    let said = answer.everything();
                    let said = FOREIGN.iter().find(|word| said.contains(**word)).map(|word| (word, &said));
                    assert!(said.is_none(), "{} {}: {:?}", route.method.word(), route.path, said.map(|(word, _)| word));
                }
                // Nobody learns from an error more than that it is one.
                let is_told = answer.status < 400 || answer.json()["type"].as_str().is_some();
                assert!(is_told, "{} {}: {}", route.method.word(), route.path, answer.text);
            }
            table.push_str(line.trim_end());
            table.push('\n');
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/api/access.txt");
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(committed == table, "the table is now:\n{table}");
    }

    async fn an_agent_that_signs_gets_at_what_is_its_own_and_at_nothing_else(platform: &TestPlatform) {
        let (api, _tokens) = two_tenants(platform).await;
        let agent = crate::support::agent::Agent::enrol(&api, "n-shared").await;
        for route in ROUTES {
            let Access::Needs(permission) = route.access else { continue };
            let path = filled(route.path, "0123456789abcdef");
            let claims = agent.claims(platform, route.method.word(), &path, b"");
            let token = agent.signer.sign_request(&claims).expect("claims can be signed");
            let answer = api.ask(route.method.word(), &path).token(&token).send().await;
            let is_own = matches!(permission, Permission::UsageSend | Permission::SelfRead);
            assert_eq!(answer.status != 403, is_own, "{} {path}: {}", route.method.word(), answer.text);
            assert_ne!(answer.status, 401, "{} {path}: {}", route.method.word(), answer.text);
        }
    }

    async fn a_tenants_token_finds_nothing_foreign_wherever_it_looks(platform: &TestPlatform) {
        let (api, tokens) = two_tenants(platform).await;
        let of = |who: &str| tokens.iter().find(|(known, _)| *known == who).unwrap().1.clone();
        let (acme, admin) = (of("acme"), of("admin"));
        // Cursors that point at others' things, as the operator is given them.
        let mut cursors = vec![];
        for list in ["tenants", "nodes", "devices", "tenants/beta/projects", "audit", "mapping-rules", "tokens"] {
            let page = api.get(&admin, &format!("/api/v1/{list}?limit=1")).await.is(200).json();
            cursors.extend(page["next"].as_str().map(str::to_owned));
        }
        assert!(cursors.len() >= 4, "{cursors:?}");
        let dimensions = ["tenant", "project", "mode", "model", "node", "workload", "day", "state"];
        let mut paths = vec![];
        for first in dimensions {
            for second in dimensions {
                for format in ["json", "csv"] {
                    paths.push(format!("/api/v1/reports/costs?period=2026-06&group_by={first},{second}&format={format}"));
                }
            }
        }
        paths.push(format!("/api/v1/reports/costs?period=2026-06&group_by={}", dimensions.join(",")));
        paths.push("/api/v1/reports/costs?from=2026-06-01&to=2026-06-03&group_by=node,workload".to_owned());
        for node in ["n-shared", "n-secret", "nowhere"] {
            paths.push(format!(
                "/api/v1/usage/windows?node={node}&from=2026-06-01T00:00:00Z&to=2026-06-05T00:00:00Z&limit=1"
            ));
        }
        paths.push("/api/v1/reports/costs?from=2026-06-01T05:00:00Z&to=2026-06-03".to_owned());
        for route in ROUTES.iter().filter(|route| route.method == fatia::http::Method::Get) {
            let own = filled(route.path, "0123456789abcdef");
            // Both own and foreign things in the path, and things that nobody has.
            for (from, to) in [("acme", "acme"), ("acme", "beta"), ("vision", "hidden-project"), ("acme", "nobody"),
                               ("n-shared", "n-secret"), ("g-shared", "g-secret")] {
                let path = own.replace(from, to);
                for cursor in &cursors {
                    paths.push(format!("{path}?after={cursor}"));
                    paths.push(format!("{path}?after={cursor}&limit=1000"));
                }
                for query in ["", "?limit=1", "?limit=0", "?node=n-secret", "?sort=name", "?tenant=beta", "?pool=x",
                              "?kind=source_conflict", "?wait=0", "?model=A10", "?after=00", "?format=csv"] {
                    paths.push(format!("{path}{query}"));
                }
            }
        }
        paths.sort_unstable();
        paths.dedup();
        assert!(paths.len() > 1_000, "{} paths", paths.len());
        for path in paths {
            let answer = api.get(&acme, &path).await;
            // What the asker itself wrote may come back to it, in a fault.
            let asked_for = FOREIGN.iter().filter(|word| path.contains(**word)).count();
            let said = answer.everything();
            let foreign: Vec<&&str> = FOREIGN.iter().filter(|word| said.contains(**word)).collect();
            let only_echoed = answer.status >= 400 && foreign.iter().all(|word| path.contains(**word));
            assert!(foreign.is_empty() || (asked_for > 0 && only_echoed), "{path}: {foreign:?} in {said}");
        }
    }

    async fn foreign_and_missing_are_the_same_to_a_tenant(platform: &TestPlatform) {
        let (api, tokens) = two_tenants(platform).await;
        let acme = &tokens.iter().find(|(who, _)| *who == "acme").unwrap().1;
        for (foreign, missing) in [
            ("/api/v1/tenants/beta", "/api/v1/tenants/none"),
            ("/api/v1/tenants/beta/projects", "/api/v1/tenants/none/projects"),
            ("/api/v1/tenants/beta/projects/hidden-project", "/api/v1/tenants/none/projects/hidden-project"),
            ("/api/v1/tenants/acme/projects/hidden-project", "/api/v1/tenants/acme/projects/none"),
            ("/api/v1/tenants/platform", "/api/v1/tenants/none"),
        ] {
            let (foreign, missing) = (api.get(acme, foreign).await, api.get(acme, missing).await);
            assert_eq!((foreign.status, missing.status), (404, 404));
            let shape = |answer: &crate::support::api::Answer, name: &str| {
                let mut document = answer.json();
                document["instance"] = "".into();
                document["detail"] = document["detail"].as_str().unwrap().replace(name, "it").into();
                document
            };
            let foreign_name = ["beta", "hidden-project", "platform"].into_iter()
                .find(|name| foreign.text.contains(&format!("`{name}`"))).unwrap();
            let missing_name = if missing.text.contains("`none`") { "none" } else { foreign_name };
            assert_eq!(shape(&foreign, foreign_name), shape(&missing, missing_name));
        }
    }

    async fn what_a_tenant_sees_is_what_finance_sees_of_it(platform: &TestPlatform) {
        let (api, tokens) = two_tenants(platform).await;
        let of = |who: &str| tokens.iter().find(|(known, _)| *known == who).unwrap().1.clone();
        let path = "/api/v1/reports/costs?period=2026-06&group_by=tenant,project,mode,node,workload,day";
        let all = api.get(&of("finance"), path).await.is(200).json();
        let own = api.get(&of("acme"), path).await.is(200).json();
        let groups = |report: &serde_json::Value| -> Vec<serde_json::Value> {
            report["groups"].as_array().unwrap().iter().filter(|group| group["tenant"] == "acme").cloned().collect()
        };
        assert_eq!(groups(&own), groups(&all));
        assert_eq!(own["groups"].as_array().unwrap().len(), groups(&all).len(), "and nothing else");
        assert_eq!(own["total"]["gpu_hours"], "12.000000");
        assert_eq!(own["total"]["cost"], "12");
        assert!(own.get("reconciliation").is_none(), "the fleet's size is the platform's");
        assert_eq!(all["reconciliation"]["difference"], "0.000000");
        // The same from the smaller sums per tenant and day.
        let small = api.get(&of("acme"), "/api/v1/reports/costs?period=2026-06").await.is(200).json();
        assert_eq!(small["total"], own["total"]);
    }
}
