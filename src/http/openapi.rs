//! The API's document, OpenAPI 3.1: paths from the route table, words and shapes from here.
//!
//! Always true here: a route without an entry fails a test; shapes are closed, so that a field that is answered and not
//! described fails one too.

use serde_json::{Map, Value, json};

use super::ROUTES;
use super::call::{Access, Route, Takes};
use super::problem::Kind;
use super::query::LIMIT_MAX;
use crate::domain::access::{Permission, Role};
use crate::domain::allocation::PartState;
use crate::domain::device::{DeclaredKind, SharingMode};
use crate::domain::mapping::Comparison;
use crate::domain::policy::Basis;
use crate::domain::report::Dimension;
use crate::domain::usage::EvidenceField;

/// What one operation says beside its line in the route table.
struct Entry {
    tag: &'static str,
    summary: &'static str,
    /// Query parameters and headers.
    parameters: Vec<Value>,
    /// The schema of the JSON body.
    body: Option<&'static str>,
    /// Status, media type and schema of the good answer.
    answer: (u16, &'static str, Value),
    /// Another good status with the same answer.
    also: Option<u16>,
    /// Statuses of problems, beside those that every operation has.
    problems: &'static [u16],
}

const JSON: &str = "application/json";

/// In the order in which a reader meets them.
const TAGS: [(&str, &str); 12] = [
    ("Reports", "What it comes to."),
    ("Imports", "Histories of who held what, uploaded as tables."),
    ("Fleet", "Nodes, pools, devices, their in-service intervals and declared states."),
    ("Tenants", "Who pays, and for which project."),
    ("Mapping rules", "From evidence to tenant and project."),
    ("Prices", "What a GPU-hour costs, and by which policy a slice is a share of one."),
    ("Catalogue", "What boards, MIG profiles and vGPU types are."),
    ("Agents", "Who reports: agents sign each request with the key that they were enrolled with."),
    ("Usage", "What agents report."),
    ("Tokens", "Who may ask for what."),
    ("Audit", "Who changed what, and what someone should know."),
    ("Service", "The process itself: health, figures, and how far deriving is."),
];

fn schema(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn page_of(name: &str) -> Value {
    object(json!({
        "items": { "type": "array", "items": schema(name) },
        "next": { "type": ["string", "null"], "description": "The cursor of the next page: give it as `after`." },
    }))
}

/// A closed object all of whose fields are there.
fn object(properties: Value) -> Value {
    let required: Vec<&String> = properties.as_object().into_iter().flat_map(Map::keys).collect();
    json!({ "type": "object", "required": required, "additionalProperties": false, "properties": properties })
}

/// A closed object with these fields required.
fn body(required: &[&str], properties: Value) -> Value {
    json!({ "type": "object", "required": required, "additionalProperties": false, "properties": properties })
}

fn words(words: impl IntoIterator<Item = &'static str>) -> Value {
    json!({ "type": "string", "enum": words.into_iter().collect::<Vec<_>>() })
}

fn or_null(schema: Value) -> Value {
    json!({ "anyOf": [schema, { "type": "null" }] })
}

/// A name. White space around it is cut, and control characters are refused, which a schema cannot say.
fn name() -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": 256 })
}

fn instant() -> Value {
    json!({
        "type": "string", "format": "date-time", "description": "RFC 3339, with a zone.",
        "example": "2026-06-01T00:00:00Z",
    })
}

fn shown_instant() -> Value {
    json!({ "type": "string", "description": "RFC 3339, UTC." })
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn text_or_null() -> Value {
    json!({ "type": ["string", "null"] })
}

fn integer() -> Value {
    json!({ "type": "integer", "format": "int64" })
}

fn integer_or_null() -> Value {
    json!({ "type": ["integer", "null"] })
}

fn decimal(what: &str) -> Value {
    json!({ "type": "string", "format": "decimal", "pattern": "^-?[0-9]+(\\.[0-9]+)?$", "description": what })
}

fn price() -> Value {
    json!({
        "type": "string", "format": "decimal", "pattern": "^[0-9]+(\\.[0-9]+)?$",
        "description": "Of the currency unit per GPU-hour, at most eight decimals.",
    })
}

fn query(name: &str, schema: Value, description: &str) -> Value {
    json!({ "name": name, "in": "query", "required": false, "schema": schema, "description": description })
}

fn pages() -> Vec<Value> {
    let limit = json!({ "type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": 100 });
    let cursor = "The `next` of the page before. A cursor is of one list and says nothing to its reader.";
    vec![
        query("limit", limit, "Values of one page."),
        // Cursors are never made up, so clients that try need no more than the shape.
        query(
            "after",
            json!({ "type": "string", "pattern": "^([0-9a-f]{2})+$", "maxLength": 8_192 }),
            cursor,
        ),
    ]
}

fn pages_and(more: Vec<Value>) -> Vec<Value> {
    pages().into_iter().chain(more).collect()
}

fn if_match(is_required: bool, description: &str) -> Value {
    json!({
        "name": "If-Match", "in": "header", "required": is_required, "schema": { "type": "string" },
        "description": description, "example": "*",
    })
}

fn file_name() -> Value {
    query("file", name(), "What the body is called in answers.")
}

fn entry(operation: &str) -> Option<Entry> {
    let plain = |tag, summary, answer: Value| Entry {
        tag,
        summary,
        parameters: vec![],
        body: None,
        answer: (200, JSON, answer),
        also: None,
        problems: &[],
    };
    let web_page =
        |summary| Entry { answer: (200, "text/html", text()), ..plain("Service", summary, json!({})) };
    let list = |tag, summary, of: &str| Entry {
        parameters: pages(),
        problems: &[422],
        ..plain(tag, summary, page_of(of))
    };
    let made = |tag, summary, body, of: &str| Entry {
        body: Some(body),
        answer: (201, JSON, schema(of)),
        problems: &[409],
        ..plain(tag, summary, json!({}))
    };
    Some(match operation {
        "health" => plain(
            "Service",
            "Whether the process lives",
            object(json!({ "status": { "const": "ok" }, "version": text() })),
        ),
        "readiness" => Entry {
            problems: &[503],
            ..plain(
                "Service",
                "Whether the process can do its work",
                object(json!({ "status": { "const": "ready" } })),
            )
        },
        "docs" => Entry {
            answer: (200, "text/html", text()),
            ..plain("Service", "This document, as a page", json!({}))
        },
        "docsFile" => Entry {
            answer: (200, "text/javascript", text()),
            problems: &[404],
            ..plain("Service", "A part of that page", json!({}))
        },
        "page" => web_page("The web pages: the month"),
        "monthPage" => web_page("The web pages: the month, under its own name"),
        "fleetPage" => web_page("The web pages: the fleet"),
        "pageFile" => Entry {
            answer: (200, "*/*", text()),
            problems: &[404],
            ..plain("Service", "A script, a style or a picture of the web pages", json!({}))
        },
        "openapi" => plain("Service", "This document", json!({ "type": "object" })),
        "metrics" => Entry {
            answer: (200, "text/plain", text()),
            ..plain("Service", "The service's own figures, in Prometheus's text format", json!({}))
        },
        "self" => plain("Tokens", "Who one is, and what one may do", schema("Self")),
        "listTenants" => list("Tenants", "Tenants: all, or one's own", "Named"),
        "createTenant" => made("Tenants", "Make a tenant", "NewNamed", "Named"),
        "getTenant" => Entry { problems: &[404], ..plain("Tenants", "A tenant", schema("Named")) },
        "listProjects" => {
            Entry { problems: &[404, 422], ..list("Tenants", "The projects of a tenant", "Named") }
        }
        "createProject" => Entry {
            problems: &[404, 409],
            ..made("Tenants", "Make a project of a tenant", "NewNamed", "Named")
        },
        "getProject" => {
            Entry { problems: &[404], ..plain("Tenants", "A project of a tenant", schema("Named")) }
        }
        "listMappingRules" => {
            list("Mapping rules", "Rules in the order in which they are tried", "MappingRule")
        }
        "createMappingRule" => made(
            "Mapping rules",
            "Add a rule; the hours in which it holds are divided anew",
            "NewMappingRule",
            "MappingRule",
        ),
        "getMappingRule" => {
            Entry { problems: &[404], ..plain("Mapping rules", "A rule", schema("MappingRule")) }
        }
        "replaceMappingRule" => Entry {
            parameters: vec![if_match(true, "The ETag of the rule that was seen, or `*`.")],
            body: Some("NewMappingRule"),
            problems: &[404, 412],
            ..plain("Mapping rules", "Put a rule in place of what it says", schema("MappingRule"))
        },
        "removeMappingRule" => Entry {
            parameters: vec![if_match(true, "The ETag of the rule that was seen, or `*`.")],
            problems: &[404, 412, 422],
            ..plain("Mapping rules", "Remove a rule; answers what it said", schema("MappingRule"))
        },
        "listPriceBooks" => list("Prices", "The newest revision of each price book", "PriceBook"),
        "publishPriceBook" => Entry {
            parameters: vec![
                file_name(),
                if_match(false, "The revision that was seen, as ETag; not given: whatever is there."),
            ],
            also: Some(200),
            problems: &[409, 412],
            ..made(
                "Prices",
                "Publish a price book; another content under a name is its next revision",
                "NewPriceBook",
                "Publication",
            )
        },
        "getPriceBook" => Entry {
            problems: &[404],
            ..plain(
                "Prices",
                "The revisions of a price book, the newest first",
                object(json!({ "revisions": { "type": "array", "items": schema("PriceBook") } })),
            )
        },
        "getCatalogue" => Entry {
            parameters: vec![query(
                "model",
                name(),
                "A board by any of its names, or the board's code in vGPU types.",
            )],
            problems: &[422],
            ..plain(
                "Catalogue",
                "Boards, MIG profiles and vGPU types, and from where they are known",
                schema("Catalogue"),
            )
        },
        "loadCatalogue" => Entry {
            parameters: vec![file_name()],
            ..plain("Catalogue", "Put a file's rows over the embedded ones", schema("CatalogueLoaded"))
        },
        "listStates" => Entry {
            parameters: pages_and(vec![query("node", name(), "Only this node's.")]),
            ..list("Fleet", "Declared states, by start", "DeclaredState")
        },
        "declareStates" => Entry {
            parameters: vec![
                file_name(),
                query("source", name(), "Who declares, where the body does not say so."),
            ],
            body: Some("NewStates"),
            ..plain(
                "Fleet",
                "Declare states: of JSON all or none are taken, of a table the good lines",
                schema("StatesDeclared"),
            )
        },
        "listNodes" => list("Fleet", "Nodes", "Scope"),
        "getNode" => Entry { problems: &[404], ..plain("Fleet", "A node", schema("Scope")) },
        "getNodeLayout" => Entry {
            parameters: vec![query("at", instant(), "When; left out: the last instant that is counted.")],
            problems: &[404, 422],
            ..plain(
                "Fleet",
                "What a node's GPUs were divided into at an instant, as they are billed",
                schema("ScopeLayout"),
            )
        },
        "listPools" => list("Fleet", "Pools", "Scope"),
        "getPoolLayout" => Entry {
            parameters: vec![query("at", instant(), "When; left out: the last instant that is counted.")],
            problems: &[404, 422],
            ..plain(
                "Fleet",
                "What a pool's GPUs were divided into at an instant, as they are billed",
                schema("ScopeLayout"),
            )
        },
        "listDevices" => Entry {
            parameters: pages_and(vec![
                query("node", name(), "Only those that are, or were, at home on this node."),
                query("pool", name(), "Only those that belong, or belonged, to this pool."),
            ]),
            problems: &[404, 422],
            ..list("Fleet", "Devices with their in-service intervals", "Device")
        },
        "getDevice" => Entry { problems: &[404], ..plain("Fleet", "A device", schema("Device")) },
        "getDeviceLayout" => Entry {
            parameters: vec![
                query("from", instant(), "From when."),
                query("to", instant(), "Until when; at most 7 days later."),
            ],
            problems: &[404, 422],
            ..plain(
                "Fleet",
                "What a GPU was divided into, span by span, as it is billed",
                schema("SpanLayout"),
            )
        },
        "bringInventory" => Entry {
            parameters: vec![file_name()],
            body: Some("NewInventory"),
            ..plain(
                "Fleet",
                "Open and end in-service intervals: of JSON all or none are taken, of a table the good lines",
                schema("InventoryBrought"),
            )
        },
        "listImports" => list("Imports", "Uploaded imports, the newest first", "Import"),
        "uploadImport" => Entry {
            answer: (202, JSON, schema("Import")),
            ..plain("Imports", "Bring in a history; it is worked on beside the answer", json!({}))
        },
        "getImport" => {
            Entry { problems: &[404], ..plain("Imports", "How an import stands", schema("Import")) }
        }
        "listRefusedLines" => Entry {
            problems: &[404, 422],
            ..list("Imports", "Lines that an import did not take", "RefusedLine")
        },
        "reportCosts" => Entry {
            parameters: vec![
                query(
                    "period",
                    json!({ "type": "string", "pattern": "^20[0-9]{2}-(0[1-9]|1[0-2])$" }),
                    "A month of the billing zone; or `from` and `to`.",
                ),
                query(
                    "from",
                    text(),
                    "The first day: a date of the billing zone, or the instant at which a day begins there.",
                ),
                query("to", text(), "The day after the last, likewise."),
                query(
                    "group_by",
                    text(),
                    &format!(
                        "Any of {}, separated by commas.",
                        Dimension::ALL.map(Dimension::word).join(", ")
                    ),
                ),
                query("format", words(["json", "csv"]), "How the report is written."),
            ],
            problems: &[422],
            ..plain(
                "Reports",
                "GPU-hours and costs, reconciled: of all, or of one's own tenant",
                schema("Costs"),
            )
        },
        "listTokens" => list("Tokens", "Tokens, without their texts", "Token"),
        "createToken" => made(
            "Tokens",
            "Make a token; its text is answered once and kept nowhere",
            "NewToken",
            "MadeToken",
        ),
        "getToken" => Entry { problems: &[404], ..plain("Tokens", "A token", schema("Token")) },
        "revokeToken" => Entry {
            problems: &[404],
            ..plain("Tokens", "Revoke a token, everywhere within seconds", schema("Token"))
        },
        "listAgents" => list("Agents", "Agents, with what came from them last", "Agent"),
        "getAgent" => Entry { problems: &[404], ..plain("Agents", "An agent", schema("Agent")) },
        "revokeAgent" => Entry {
            problems: &[404],
            ..plain("Agents", "Revoke an agent's key, everywhere within seconds", schema("Agent"))
        },
        "listEnrolmentTokens" => list("Agents", "Enrolment tokens, without their texts", "EnrolmentToken"),
        "createEnrolmentToken" => made(
            "Agents",
            "Make a token by which one node is enrolled; its text is answered once and kept nowhere",
            "NewEnrolmentToken",
            "MadeEnrolmentToken",
        ),
        "enrol" => Entry {
            body: Some("Enrol"),
            problems: &[401],
            ..plain(
                "Agents",
                "Become a node's agent, by an enrolment token; the same key is answered alike again",
                schema("Enrolled"),
            )
        },
        "putInventory" => Entry {
            body: Some("AgentInventory"),
            ..plain(
                "Agents",
                "Say what one's node has. New devices come into service; nothing leaves it",
                schema("InventoryTaken"),
            )
        },
        "sendBatch" => plain(
            "Usage",
            "Send a batch: a zstd frame of `usage_v1`, with its place in the stream signed in the token",
            schema("Acknowledgement"),
        ),
        "sendSkip" => Entry {
            body: Some("Skip"),
            ..plain("Usage", "Say that numbers of a stream will never come", schema("Acknowledgement"))
        },
        "listWindows" => Entry {
            parameters: pages_and(vec![
                query("node", name(), "The node."),
                query("from", instant(), "From when."),
                query("to", instant(), "Until when; at most 31 days later."),
                query("device", name(), "Only this device's."),
                query("kind", words(["held", "existed", "measured"]), "Only of this kind."),
            ]),
            problems: &[404, 422],
            ..list(
                "Usage",
                "What was reported of a node, as it was: of all, or of one's own tenant",
                "Window",
            )
        },
        "listAudit" => list("Audit", "Who changed what, the newest first", "AuditEntry"),
        "listFindings" => Entry {
            parameters: pages_and(vec![query("kind", text(), "Only this kind.")]),
            ..list("Audit", "What someone should know, the latest first", "Finding")
        },
        "getDerivation" => Entry {
            parameters: vec![
                query(
                    "wait",
                    json!({ "type": "integer", "minimum": 0, "maximum": 60, "default": 0 }),
                    "Answer when what is marked now is derived, or after so many seconds.",
                ),
                query(
                    "moment",
                    json!({ "type": "integer", "minimum": 0 }),
                    "Go on waiting for what was marked at this moment, which an earlier answer named.",
                ),
            ],
            problems: &[422],
            ..plain(
                "Service",
                "How far deriving is",
                object(
                    json!({ "pending_marks": integer(), "awaited_days": integer(), "someone_works": { "type": "boolean" }, "moment": integer_or_null() }),
                ),
            )
        },
        "rebuild" => Entry {
            answer: (202, JSON, object(json!({ "pending_marks": integer() }))),
            ..plain("Service", "Derive everything again from the journal", json!({}))
        },
        "checkLevels" => plain(
            "Service",
            "Whether each level still says what the one below it says",
            object(json!({
                "checks": {
                    "type": "array",
                    "items": object(json!({
                        "subject": text(), "verdict": words(["ok", "notice", "WRONG"]), "detail": text(),
                    })),
                },
            })),
        ),
        _ => return None,
    })
}

fn schemas() -> Value {
    let figures = json!({
        "gpu_hours": decimal("GPU-hours, priced and unpriced; six decimals."),
        "unpriced_gpu_hours": decimal("Of these, GPU-hours without a price."),
        "cost": or_null(decimal("What the priced hours cost, exactly; null where no hour has a price.")),
        "metered_gpu_hours": decimal("GPU-hours whose energy was counted."),
        "energy_joules": or_null(decimal("The energy of the metered hours.")),
    });
    let mut line = figures.clone();
    if let Some(fields) = line.as_object_mut() {
        for dimension in Dimension::ALL {
            fields.insert(dimension.word().to_owned(), text());
        }
    }
    let needed: Vec<&str> =
        ["state", "gpu_hours", "unpriced_gpu_hours", "cost", "metered_gpu_hours", "energy_joules"].to_vec();
    let rule = |is_new: bool| {
        let mut fields = json!({
            "order": { "type": "integer", "format": "int64", "description": "Rules are tried from the smallest up; the first that fits decides." },
            "effective_from": or_null(if is_new { instant() } else { shown_instant() }),
            "effective_to": or_null(if is_new { instant() } else { shown_instant() }),
            "conditions": { "type": "array", "maxItems": 32, "items": object(json!({
                "field": words(EvidenceField::ALL.map(EvidenceField::word)),
                "comparison": words(Comparison::ALL.map(Comparison::word)),
                "value": if is_new { name() } else { text() },
            })) },
            "tenant": if is_new { name() } else { text() },
            "project": if is_new { name() } else { text() },
        });
        if is_new {
            return body(&["order", "tenant", "project"], fields);
        }
        if let Some(fields) = fields.as_object_mut() {
            fields.insert("id".to_owned(), integer());
            fields.insert("revision".to_owned(), integer());
            fields.insert("changed".to_owned(), text_or_null());
            fields.insert("changed_by".to_owned(), text());
        }
        object(fields)
    };
    let prices = |value: Value| json!({ "type": "object", "additionalProperties": value, "maxProperties": 2_000, "propertyNames": name() });
    let modes = || {
        let modes: Map<String, Value> = SharingMode::ALL
            .into_iter()
            .map(|mode| (mode.word().to_owned(), words(Basis::ALL.map(Basis::word))))
            .collect();
        json!({ "type": "object", "additionalProperties": false, "properties": modes })
    };
    let weightings = words(["blended", "compute", "memory", "dominant"]);
    let token = json!({
        "id": text(), "name": text(), "role": words(Role::ALL.map(Role::word)), "tenant": text_or_null(),
        "scopes": { "type": ["array", "null"], "items": words(Permission::ALL.map(Permission::word)) },
        "created": shown_instant(), "created_by": text(), "expires": text_or_null(), "revoked": text_or_null(),
        "last_used": text_or_null(),
    });
    let mut made_token = token.clone();
    if let Some(fields) = made_token.as_object_mut() {
        let secret = "The token's text, shown this once; null for a repeated request.";
        fields.insert("secret".to_owned(), json!({ "type": ["string", "null"], "description": secret }));
    }
    let refused = json!({ "type": "array", "items": object(json!({ "file": text(), "line": integer(), "reason": text() })) });
    let part = json!({ "type": "string", "contentMediaType": "text/csv" });
    let mut all = Map::new();
    let mut add = |name: &str, schema: Value| all.insert(name.to_owned(), schema);
    add(
        "Problem",
        json!({
            "type": "object",
            "required": ["type", "title", "status", "detail", "instance"],
            "additionalProperties": false,
            "properties": {
                "type": words_of(Kind::ALL.map(Kind::uri)),
                "title": text(),
                "status": { "type": "integer" },
                "detail": text(),
                "instance": { "type": "string", "description": "The request, as the log names it." },
                "errors": { "type": "array", "description": "All faults of the request, each with where it is.", "items": {
                    "type": "object", "required": ["detail"], "additionalProperties": false,
                    "properties": { "detail": text(), "pointer": text(), "parameter": text(), "header": text(), "path": text() },
                } },
            },
        }),
    );
    add(
        "Self",
        object(json!({
            "token": text(), "name": text(), "role": words(Role::ALL.map(Role::word)), "tenant": text_or_null(),
            "permissions": { "type": "array", "items": words(Permission::ALL.map(Permission::word)) },
            "expires": text_or_null(),
            "demo": { "type": "boolean", "description": "Whether all data of this installation is made up." },
        })),
    );
    add("NewNamed", body(&["name"], json!({ "name": name() })));
    add(
        "Named",
        object(
            json!({ "name": text(), "origin": words(["operator", "import"]), "created": shown_instant() }),
        ),
    );
    add("NewMappingRule", rule(true));
    add("MappingRule", rule(false));
    add(
        "NewPriceBook",
        body(
            &["name", "currency", "effective_from"],
            json!({
                "name": name(),
                "currency": { "type": "string", "pattern": "^[A-Z]{3}$", "description": "ISO 4217; the installation's." },
                "effective_from": instant(), "effective_to": or_null(instant()),
                "cost": prices(price()), "charge": prices(price()),
                "policy": body(&[], json!({
                    "weighting": weightings, "alpha": { "type": "string", "description": "The share of compute, 0 to 1, under `blended`." },
                    "basis": modes(), "entitled": { "type": "boolean" }, "reserve_powered_off": { "type": "boolean" },
                })),
            }),
        ),
    );
    add(
        "PriceBook",
        object(json!({
            "name": text(), "revision": integer(), "currency": text(), "effective_from": shown_instant(),
            "effective_to": text_or_null(), "cost": prices(decimal("")), "charge": prices(decimal("")),
            "policy": object(json!({
                "weighting": weightings, "alpha": text_or_null(), "basis": modes(),
                "entitled": { "type": "boolean" }, "reserve_powered_off": { "type": "boolean" },
            })),
            "published": shown_instant(), "replaced": text_or_null(),
        })),
    );
    add(
        "Publication",
        object(json!({
            "name": text(), "revision": integer(), "effective_from": shown_instant(), "effective_to": text_or_null(),
            "prices": integer(), "is_new": { "type": "boolean" },
        })),
    );
    add(
        "Catalogue",
        object(json!({
            "file": or_null(object(json!({ "revision": integer(), "loaded": shown_instant(), "loaded_by": text() }))),
            "boards": { "type": "array", "items": object(json!({
                "key": text(), "names": { "type": "array", "items": text() }, "memory_mib": integer(),
                "baseline_milliwatts": integer_or_null(), "compute_slices": integer_or_null(),
                "memory_slots": integer_or_null(), "source": text(), "confidence": text(),
                "profiles": { "type": "array", "items": object(json!({
                    "name": text(), "compute_slices": integer(), "memory_slots": integer(),
                    "starts": { "type": "array", "items": integer() }, "max_instances": integer(),
                    "source": text(), "confidence": text(),
                })) },
            })) },
            "vgpu_types": { "type": "array", "items": object(json!({
                "name": text(), "board_memory_mib": integer(), "framebuffer_mib": integer(),
                "gi_profile": text_or_null(), "max": integer(), "max_mixed": integer_or_null(),
                "source": text(), "confidence": text(),
            })) },
        })),
    );
    add(
        "CatalogueLoaded",
        object(json!({
            "revision": integer_or_null(), "boards": integer(), "profiles": integer(), "vgpus": integer(),
            "is_new": { "type": "boolean" },
        })),
    );
    add(
        "NewStates",
        body(
            &["states"],
            json!({
                "source": name(),
                "states": { "type": "array", "maxItems": 1_000, "items": body(&["node", "kind", "from"], json!({
                    "node": name(), "gpu_uuid": name(), "slice": name(),
                    "kind": words(DeclaredKind::ALL.map(DeclaredKind::word)), "from": instant(), "to": or_null(instant()),
                })) },
            }),
        ),
    );
    add(
        "DeclaredState",
        object(json!({
            "node": text(), "gpu_uuid": text_or_null(), "slice": text_or_null(),
            "kind": words(DeclaredKind::ALL.map(DeclaredKind::word)), "from": shown_instant(), "to": text_or_null(),
            "source": text(), "declared": shown_instant(), "declared_by": text(),
        })),
    );
    add(
        "StatesDeclared",
        object(json!({
            "lines": integer(), "repeated": integer(), "refused": refused, "declared": integer(),
            "amended": integer(), "taken_back": integer(),
        })),
    );
    add("Scope", object(json!({ "name": text(), "devices": integer(), "in_service": integer() })));
    add(
        "Device",
        object(json!({
            "gpu_uuid": text(), "gpu_model": text(), "gpu_memory_mib": integer_or_null(),
            "in_service": { "type": "array", "items": object(json!({
                "node": text(), "pool": text_or_null(), "gpu_index": integer_or_null(), "from": shown_instant(),
                "to": text_or_null(), "covered_to": shown_instant(), "counted_to": shown_instant(),
            })) },
        })),
    );
    let piece = object(json!({
        "state": words(PartState::ALL.map(PartState::word)),
        "share": { "type": "string", "pattern": "^[0-9]+/[0-9]+$", "description": "A fraction of the device; those of a layout sum to 1." },
        "mode": text_or_null(), "sku": text(), "slice": text_or_null(), "slice_id": text_or_null(),
        "start": integer_or_null(), "tenant": text_or_null(), "project": text_or_null(),
        "evidence": { "type": "object", "additionalProperties": text() },
        "activity": text_or_null(), "utilization": text_or_null(), "estimated": { "type": "boolean" },
    }));
    add("LayoutPiece", piece);
    add(
        "Layout",
        object(json!({
            "from": shown_instant(), "to": shown_instant(),
            "pieces": { "type": "array", "items": schema("LayoutPiece") },
            "doubts": { "type": "array", "items": object(json!({ "kind": text(), "about": text() })) },
        })),
    );
    add(
        "DeviceLayout",
        object(json!({
            "gpu_uuid": text(), "gpu_model": text(), "gpu_index": integer_or_null(), "node": text(),
            "pool": text_or_null(), "layouts": { "type": "array", "items": schema("Layout") },
        })),
    );
    let devices = json!({ "type": "array", "items": schema("DeviceLayout") });
    add("ScopeLayout", object(json!({ "name": text(), "at": or_null(shown_instant()), "devices": devices })));
    add("SpanLayout", object(json!({ "from": shown_instant(), "to": shown_instant(), "devices": devices })));
    add(
        "NewInventory",
        body(
            &["devices"],
            json!({
                "devices": { "type": "array", "maxItems": 1_000, "items": body(&["node", "gpu_uuid", "gpu_model", "in_service_from"], json!({
                    "node": name(), "gpu_uuid": name(), "gpu_model": name(),
                    "gpu_index": { "type": "integer", "minimum": 0, "maximum": 65_535 },
                    "gpu_memory_gib": { "type": "integer", "minimum": 1, "maximum": 1_048_576 },
                    "in_service_from": instant(), "in_service_to": or_null(instant()), "pool": or_null(name()),
                })) },
            }),
        ),
    );
    add(
        "InventoryBrought",
        object(json!({
            "opened": integer(), "ended": integer(), "repooled": integer(), "refused": refused,
        })),
    );
    add(
        "NewImport",
        body(
            &["inventory", "intervals"],
            json!({
                "inventory": part, "intervals": part, "slices": part,
                "source": name(), "rank": words(["hypervisor", "scheduler", "scrape", "import"]),
                "covers": { "type": "string", "description": "FROM/TO, two instants." },
            }),
        ),
    );
    add(
        "Import",
        object(json!({
            "id": text(), "source": text(), "rank": text(),
            "state": words(["running", "finished", "failed", "interrupted"]),
            "started": shown_instant(), "started_by": text(), "finished": text_or_null(),
            "batches": integer(), "answered": integer(),
            "outcome": or_null(object(json!({
                "lines": integer(), "refused_lines": integer(), "repeated": integer(), "stored": integer(),
                "duplicates": integer(), "refused_rows": integer(), "opened": integer(), "changed": integer(),
                "number": integer_or_null(),
            }))),
            "failure": text_or_null(),
        })),
    );
    add(
        "RefusedLine",
        object(json!({ "ordinal": integer(), "file": text(), "line": integer(), "reason": text() })),
    );
    add("Figures", object(figures));
    add("CostLine", body(&needed, line));
    add(
        "Costs",
        json!({
            "type": "object",
            "required": ["period", "from", "to", "zone", "currency", "group_by", "groups", "totals", "total", "as_of"],
            "additionalProperties": false,
            "properties": {
                "period": text(), "from": shown_instant(), "to": shown_instant(), "zone": text(), "currency": text(),
                "demo": { "type": "boolean", "description": "There, and true, where all of it is made up." },
                "group_by": { "type": "array", "items": words(Dimension::ALL.map(Dimension::word)) },
                "groups": { "type": "array", "items": schema("CostLine") },
                "totals": { "type": "array", "items": schema("CostLine") },
                "total": schema("Figures"),
                "reconciliation": object(json!({
                    "in_service_gpu_hours": decimal("From the in-service intervals."),
                    "parts_gpu_hours": decimal("From the parts."),
                    "difference": decimal("Parts minus in-service: zero, or the report is an error."),
                })),
                "as_of": shown_instant(),
            },
        }),
    );
    add(
        "NewToken",
        body(
            &["name", "role"],
            json!({
                "name": name(), "role": words(Role::ALL.map(Role::word)), "tenant": or_null(name()),
                "scopes": { "type": "array", "maxItems": Permission::ALL.len(), "items": words(Permission::ALL.map(Permission::word)) },
                "expires": or_null(instant()),
            }),
        ),
    );
    add("Token", object(token));
    add("MadeToken", object(made_token));
    let refusal = object(json!({ "pointer": text(), "reason": text() }));
    add(
        "Agent",
        object(json!({
            "id": text(), "node": text(), "version": text(), "enrolled": shown_instant(), "revoked": text_or_null(),
            "last_seen": text_or_null(), "reported_to": text_or_null(), "clock_offset_us": integer_or_null(),
            "inventory": {},
        })),
    );
    let enrolment = json!({
        "id": text(), "nodes": text(), "since": shown_instant(), "replaces": { "type": "boolean" },
        "created": shown_instant(), "created_by": text(), "expires": shown_instant(), "used": text_or_null(),
    });
    let mut made_enrolment = enrolment.clone();
    if let Some(fields) = made_enrolment.as_object_mut() {
        fields.insert("secret".to_owned(), text_or_null());
    }
    add("EnrolmentToken", object(enrolment));
    add("MadeEnrolmentToken", object(made_enrolment));
    add(
        "NewEnrolmentToken",
        body(
            &["nodes"],
            json!({
                "nodes": {
                    "type": "string", "minLength": 1, "maxLength": 256,
                    "description": "The nodes that may use it; `*` stands for any letters.",
                },
                "since": or_null(instant()), "replaces": or_null(json!({ "type": "boolean" })),
                "seconds": or_null(json!({ "type": "integer", "minimum": 1, "maximum": 3_600 })),
            }),
        ),
    );
    add(
        "Enrol",
        body(
            &["token", "node", "public_key", "version"],
            json!({
                "token": text(), "node": name(), "version": text(),
                "public_key": { "type": "string", "pattern": "^[0-9a-f]{64}$", "description": "Ed25519, hexadecimal." },
            }),
        ),
    );
    add("Enrolled", object(json!({ "agent": text(), "node": text(), "audience": text() })));
    add(
        "AgentInventory",
        body(
            &["counter", "at", "version", "devices"],
            json!({
                "counter": { "type": "integer", "minimum": 1, "maximum": i64::MAX },
                "at": { "type": "integer", "minimum": 0, "description": "Microseconds since 1970 UTC." },
                "version": text(), "driver": text_or_null(),
                "devices": { "type": "array", "maxItems": 1_024, "items": body(&["uuid", "model"], json!({
                    "uuid": name(), "model": name(), "memory_mib": integer_or_null(), "index": integer_or_null(),
                    "pci": or_null(name()), "serial": or_null(name()),
                })) },
            }),
        ),
    );
    add(
        "InventoryTaken",
        object(json!({
            "counter": integer(), "opened": integer(), "moved": integer(),
            "refused": { "type": "array", "items": refusal.clone() },
        })),
    );
    add(
        "Skip",
        body(&["from", "to", "reason"], json!({ "from": integer(), "to": integer(), "reason": name() })),
    );
    add(
        "Acknowledgement",
        object(json!({
            "stream": text(), "sequence": integer(),
            "outcome": words(["accepted", "set_aside", "duplicate", "duplicate_unverified", "ahead"]),
            "mark": integer(), "accepted_rows": integer(), "refused": { "type": "array", "items": refusal },
        })),
    );
    add(
        "Window",
        object(json!({
            "kind": words(["held", "existed", "measured"]), "from": shown_instant(), "to": shown_instant(),
            "gpu_uuid": text(), "mode": text(), "slice": text(), "slice_id": text_or_null(),
            "tenant": text_or_null(), "evidence": { "type": "object", "additionalProperties": text() },
            "active_nanos": integer_or_null(), "memory_byte_seconds": integer_or_null(),
            "stream": text(), "sequence": integer(),
        })),
    );
    add(
        "AuditEntry",
        object(json!({
            "id": integer(), "at": shown_instant(), "actor": text(), "token": text_or_null(), "request": text_or_null(),
            "action": text(), "subject": text(), "before": {}, "after": {},
        })),
    );
    add(
        "Finding",
        object(json!({
            "kind": text(), "scope": text_or_null(), "subject": text(), "since": shown_instant(), "until": text_or_null(),
            "detail": text(), "written": shown_instant(),
        })),
    );
    all.into()
}

fn words_of<const N: usize>(words: [String; N]) -> Value {
    json!({ "type": "string", "enum": words.to_vec() })
}

fn problem(status: u16) -> Value {
    let title = Kind::ALL.into_iter().find(|kind| kind.status() == status).map_or("A problem", Kind::title);
    json!({
        "description": title,
        "content": { "application/problem+json": { "schema": schema("Problem") } },
    })
}

fn operation(route: &Route, entry: Entry) -> Value {
    let mut responses = Map::new();
    let (status, media, answer) = entry.answer;
    let mut content = Map::new();
    content.insert(media.to_owned(), json!({ "schema": answer }));
    if route.operation == "reportCosts" {
        content.insert("text/csv".to_owned(), json!({ "schema": text() }));
    }
    for status in [Some(status), entry.also].into_iter().flatten() {
        let words = match status {
            201 => "Made",
            202 => "Begun",
            _ => "Good",
        };
        responses.insert(status.to_string(), json!({ "description": words, "content": content }));
    }
    let mut problems: Vec<u16> = vec![422, 429, 500, 503];
    problems.extend(entry.problems);
    if matches!(route.access, Access::Needs(_)) {
        problems.extend([401, 403]);
    }
    if route.takes != Takes::Nothing {
        problems.extend([408, 413, 415]);
    }
    // A body, where none is taken, is malformed too.
    problems.push(400);
    let writes = route.method != super::call::Method::Get;
    if writes {
        problems.push(409);
    }
    for status in problems {
        responses.insert(status.to_string(), problem(status));
    }
    let mut parameters = entry.parameters;
    for part in route.path.split('/') {
        if let Some(name) = part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
            let schema = if name == "rule" { integer() } else { json!({ "type": "string", "minLength": 1 }) };
            parameters.push(json!({ "name": name, "in": "path", "required": true, "schema": schema }));
        }
    }
    if writes {
        parameters.push(json!({
            "name": "Idempotency-Key", "in": "header", "required": false,
            "schema": { "type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$" },
            "description": "Chosen by the client: a repeat with the same key within a day is answered and not done again.",
        }));
    }
    let mut described = json!({
        "operationId": route.operation,
        "tags": [entry.tag],
        "summary": entry.summary,
        "parameters": parameters,
        "responses": responses,
    });
    let Some(fields) = described.as_object_mut() else { return described };
    match route.access {
        Access::Open => {
            fields.insert("security".to_owned(), json!([]));
        }
        Access::Needs(permission) => {
            let roles: Vec<&str> = permission.granted_to().iter().map(|role| role.word()).collect();
            let words = format!("Needs `{}`: roles {}.", permission.word(), roles.join(", "));
            fields.insert("description".to_owned(), words.into());
        }
    }
    let mut content = Map::new();
    for media in route.takes.types() {
        let shape = match *media {
            "application/json" => schema(entry.body.unwrap_or("Problem")),
            "multipart/form-data" => schema("NewImport"),
            _ => text(),
        };
        content.insert((*media).to_owned(), json!({ "schema": shape }));
    }
    if !content.is_empty() {
        fields.insert("requestBody".to_owned(), json!({ "required": true, "content": content }));
    }
    described
}

/// The document.
#[must_use]
pub fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in ROUTES {
        let Some(entry) = entry(route.operation) else { continue };
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        if let Some(methods) = path.as_object_mut() {
            methods.insert(route.method.word().to_lowercase(), operation(route, entry));
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Fatia",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "GPU chargeback: every GPU-second attributed, priced and reconciled. Quantities and money are \
                            decimal strings and exact; instants are RFC 3339 in UTC; errors are RFC 9457 problems.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "tags": TAGS.map(|(name, description)| json!({ "name": name, "description": description })),
        "security": [{ "token": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": { "token": {
                "type": "http", "scheme": "bearer", "description": "A token as `fatia token create` makes it.",
            } },
            "schemas": schemas(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_is_described_once() {
        let mut seen = std::collections::BTreeSet::new();
        for route in ROUTES {
            assert!(entry(route.operation).is_some(), "{} is not described", route.operation);
            assert!(seen.insert(route.operation), "{} stands twice", route.operation);
        }
        assert!(entry("somethingElse").is_none());
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = document();
        let text = document.to_string();
        for part in text.split("\"#/components/schemas/").skip(1) {
            let name = part.split('"').next().unwrap();
            assert!(document["components"]["schemas"][name].is_object(), "{name}");
        }
    }
}
