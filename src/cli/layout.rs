//! `ringmem layout`: the bytes of every shared struct.

use std::io::Write;

use serde_json::{Value, json};

use super::Outcome;
use crate::{Image, LayoutDescriptor};

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments, image: &Image, out: &mut dyn Write) -> Outcome {
    if arguments.json {
        let layouts: Vec<Value> = image.abi.layouts.iter().map(object).collect();
        writeln!(out, "{}", json!({ "abi": hex(image.abi.hash), "layouts": layouts }))?;
        return Ok(());
    }
    for layout in image.abi.layouts {
        table(layout, out)?;
    }
    writeln!(out, "ABI {}: all of them together, in order of name", hex(image.abi.hash))?;
    Ok(())
}

fn table(layout: &LayoutDescriptor, out: &mut dyn Write) -> std::io::Result<()> {
    writeln!(out, "{}: {} bytes, aligned to {}, hash {}", layout.name, layout.size, layout.align, hex(layout.hash))?;
    let width = |column: fn(&crate::layouts::Field) -> &str| layout.fields.iter().map(|field| column(field).len()).max().unwrap_or(0);
    let (name, kind) = (width(|field| field.name), width(|field| field.type_name));
    for field in layout.fields {
        writeln!(out, "  {:>6} {:>6}  {:name$}  {:kind$}  {}", field.offset, field.size, field.name, field.type_name, field.writer)?;
    }
    writeln!(out)
}

fn object(layout: &LayoutDescriptor) -> Value {
    let fields: Vec<Value> = layout
        .fields
        .iter()
        .map(|field| {
            json!({
                "name": field.name, "offset": field.offset, "size": field.size, "type": field.type_name, "writer": field.writer,
            })
        })
        .collect();
    json!({ "name": layout.name, "size": layout.size, "align": layout.align, "hash": hex(layout.hash), "fields": fields })
}

fn hex(hash: u64) -> String {
    format!("{hash:016x}")
}
