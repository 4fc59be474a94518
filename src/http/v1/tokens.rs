//! Tokens, and who one is.

use std::collections::BTreeSet;

use serde_json::json;

use crate::domain::access::{Permission, Role};
use crate::http::call::{Call, Reply};
use crate::http::json::{self, Faults, Fields, Node, good};
use crate::http::problem::{Kind, Problem};
use crate::services::access::{self, NewToken};

pub(in crate::http) async fn myself(mut call: Call) -> Result<Reply, Problem> {
    call.no_more_query()?;
    let Some(caller) = &call.caller else {
        return Err(Problem::new(Kind::Unauthorized, "a token is needed"));
    };
    let identity = caller.identity();
    let permissions: Vec<&str> = identity.grants.permissions().iter().map(|each| each.word()).collect();
    Reply::json(&json!({
        "token": identity.token,
        "name": identity.name,
        "role": identity.grants.role().word(),
        "tenant": identity.tenancy.as_ref().map(|tenancy| tenancy.name.as_str()),
        "permissions": permissions,
        "expires": identity.expires.map(|expires| expires.to_string()),
        "demo": call.service.platform.installation.is_demo,
    }))
}

pub(in crate::http) async fn list(mut call: Call) -> Result<Reply, Problem> {
    let page = call.only_page::<String>()?;
    let after = page.after.clone().unwrap_or_default();
    let found = access::token_list(&call.platform()?, after, page.reach()).await?;
    Reply::page(page.cut(found, |each| each.id.clone()))
}

pub(in crate::http) async fn get(mut call: Call) -> Result<Reply, Problem> {
    call.no_more_query()?;
    Reply::json(&access::token(&call.platform()?, call.name("token")?.as_str()).await?)
}

pub(in crate::http) async fn create(mut call: Call) -> Result<Reply, Problem> {
    call.no_more_query()?;
    let new = read(&call.node()?)?;
    let minted = call.service.mint()?;
    let maker = call.grants()?;
    let made = access::make_token(&call.platform()?, &maker, new, &minted).await?;
    let location = format!("/api/v1/tokens/{}", made.id);
    let mut shown = serde_json::to_value(&made).unwrap_or_default();
    if let Some(fields) = shown.as_object_mut() {
        // A repeated request finds the token of the first, whose text is known to nobody any more.
        let text = (made.id == minted.presented.id).then_some(minted.text);
        fields.insert("secret".to_owned(), text.into());
    }
    Ok(Reply::created(&shown, location)?.with("Cache-Control", "no-store"))
}

pub(in crate::http) async fn revoke(mut call: Call) -> Result<Reply, Problem> {
    call.no_more_query()?;
    let revoked = access::revoke_token(&call.platform()?, call.name("token")?.as_str()).await?;
    call.service.tokens.forget();
    Reply::json(&revoked)
}

fn read(node: &Node) -> Result<NewToken, Problem> {
    fn role(node: &Node) -> Result<Role, String> {
        Role::parse(&json::text(node)?).map_err(|error| json::cut(&error.to_string()))
    }
    let mut faults = Faults::default();
    let mut fields = Fields::of(node, "", &mut faults);
    let name = fields.need("name", json::name, &mut faults);
    let role = fields.need("role", role, &mut faults);
    let tenant = fields.find("tenant", json::name, &mut faults);
    let expires = fields.find("expires", json::instant, &mut faults);
    let mut only = BTreeSet::new();
    for (pointer, node) in fields.list("scopes", Permission::ALL.len(), &mut faults) {
        match json::text(node).and_then(|word| Permission::parse(&word).map_err(|error| error.to_string())) {
            Ok(permission) => {
                only.insert(permission);
            }
            Err(reason) => faults.body(&pointer, json::cut(&reason)),
        }
    }
    fields.end(&mut faults);
    faults.check()?;
    Ok(NewToken { name: good(name)?, role: good(role)?, tenant, only, expires })
}
