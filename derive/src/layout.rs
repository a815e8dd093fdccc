//! `#[derive(SharedLayout)]`.
//!
//! 1. The expansion is constant checks and `__shared_layout!` of `ringmem_layouts`, which is the `unsafe impl Layout`: the compiler computes sizes,
//!    offsets and the ABI hash. This crate writes no `unsafe`: it cannot know that the path which it is given names `ringmem_layouts`.
//! 2. Each check has its field's span.
//! 3. A refused struct still implements its traits, so each fault has one error.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote, quote_spanned};
use syn::meta::ParseNestedMeta;
use syn::spanned::Spanned;
use syn::{Attribute, Data, DeriveInput, Error, Expr, Field, Fields, Ident, Lit, LitInt, LitStr, Path, Result, Type};

#[derive(Default)]
struct OfStruct {
    size: Option<LitInt>,
    align: Option<LitInt>,
    message: Option<Expr>,
    writer: Option<LitStr>,
    path: Option<Path>,
}

#[derive(Default)]
struct OfField {
    at: Option<LitInt>,
    writer: Option<LitStr>,
}

pub(crate) fn derive(input: TokenStream, path: TokenStream) -> Result<TokenStream> {
    let input: DeriveInput = syn::parse2(input)?;
    let options = of_struct(&input.attrs);
    let path = options.as_ref().ok().and_then(|options| options.path.as_ref()).map_or(path, ToTokens::to_token_stream);
    let stub = stub(&input, options.as_ref().ok(), &path);
    Ok(options.and_then(|options| expand(&input, &options, &path)).unwrap_or_else(|error| {
        let error = error.into_compile_error();
        quote!(#error #stub)
    }))
}

fn expand(input: &DeriveInput, options: &OfStruct, path: &TokenStream) -> Result<TokenStream> {
    let name = &input.ident;
    let fields: Vec<&Field> = named_fields(input)?.collect();
    let refused = fields.iter().filter_map(|field| shareable(&field.ty).err());
    if let Some(refused) = is_repr_c(input).err().into_iter().chain(refused).reduce(combined) {
        return Err(refused);
    }

    let text = unraw(name);
    let lints = lints(input);
    let here = crate::spanned(path, name.span());
    let (size, align) = (optional(path, options.size.as_ref()), optional(path, options.align.as_ref()));
    let whole = quote_spanned!(name.span()=> #here::__private::size_and_align::<#name>(#text, #size, #align););
    let (mut checks, mut described) = (TokenStream::new(), TokenStream::new());
    for (place, field) in fields.iter().enumerate() {
        let Some(ident) = &field.ident else { continue };
        let OfField { at, writer } = of_field(&field.attrs)?;
        let (ty, named) = (&field.ty, unraw(ident));
        let offset = quote!(#path::__private::core::mem::offset_of!(#name, #ident));
        let size = quote!(#path::__private::core::mem::size_of::<#ty>());
        let next = match fields.get(place + 1).and_then(|next| next.ident.as_ref()) {
            Some(next) => quote!(#path::__private::core::mem::offset_of!(#name, #next)),
            None => quote!(#path::__private::core::mem::size_of::<#name>()),
        };
        let here = crate::spanned(path, ident.span());
        if let Some(declared) = at {
            checks.extend(quote_spanned!(ident.span()=> #here::__private::offset(#text, #named, #offset, #declared);));
        }
        checks.extend(quote_spanned!(ident.span()=> #here::__private::no_padding(#text, #named, #offset + #size, #next);));
        let writer = writer.or_else(|| options.writer.clone()).map_or_else(String::new, |writer| writer.value());
        described.extend(quote!(#ident #named [#ty] #writer;));
    }

    // The user's expression stands once.
    let kind = match &options.message {
        Some(_) => quote!(<#name as #path::RingMessage>::KIND),
        None => quote!(0),
    };
    let message = options.message.as_ref().map(|number| {
        let here = crate::spanned(path, number.span());
        checks.extend(quote_spanned!(number.span()=> #here::__private::number_of_message(#text, <#name as #here::RingMessage>::KIND);));
        quote_spanned! {name.span()=>
            #lints
            #[diagnostic::do_not_recommend]
            impl #here::RingMessage for #name {
                const KIND: u64 = #number;
            }
        }
    });
    Ok(quote! {
        #lints
        const _: () = {
            #checks
            #whole
        };

        #path::__shared_layout! { [#lints] #name #text #kind; #described }
        #message
    })
}

/// The levels of lints that the user gave the struct and its fields, for items that name the same types. An item that the user deprecates is no
/// reason to warn the user of its own layout.
fn lints(input: &DeriveInput) -> TokenStream {
    let fields = match &input.data {
        Data::Struct(data) => data.fields.iter().flat_map(|field| &field.attrs).collect(),
        _ => Vec::new(),
    };
    let is = |attribute: &Attribute, names: &[&str]| names.iter().any(|name| attribute.path().is_ident(name));
    let of_struct = input.attrs.iter().filter(|attribute| is(attribute, &["allow", "warn", "deny", "forbid"]));
    let of_fields = fields.iter().filter(|attribute| is(attribute, &["allow"]));
    let is_deprecated = input.attrs.iter().chain(fields.iter().copied()).any(|attribute| is(attribute, &["deprecated"]));
    let deprecated = is_deprecated.then(|| quote!(#[allow(deprecated)]));
    quote!(#(#of_struct)* #(#of_fields)* #deprecated)
}

fn combined(mut all: Error, error: Error) -> Error {
    all.combine(error);
    all
}

fn named_fields(input: &DeriveInput) -> Result<impl Iterator<Item = &Field>> {
    let name = &input.ident;
    if !input.generics.params.is_empty() {
        return Err(Error::new(
            input.generics.span(),
            format!("`{name}` is generic: its layout depends on its parameters. Write a struct for each"),
        ));
    }
    match &input.data {
        Data::Struct(data) => match &data.fields {
            Fields::Named(fields) if !fields.named.is_empty() => Ok(fields.named.iter()),
            Fields::Unnamed(fields) => {
                Err(Error::new(fields.span(), format!("the fields of `{name}` need names: C headers and error messages print them")))
            }
            _ => Err(Error::new(name.span(), format!("`{name}` has no fields, so there is nothing to share"))),
        },
        Data::Enum(_) => {
            Err(Error::new(name.span(), format!("`{name}` is an enum: not every value is valid. Share its discriminant as an integer")))
        }
        Data::Union(_) => Err(Error::new(name.span(), format!("`{name}` is a union: its bytes have no single layout. Share a struct"))),
    }
}

fn is_repr_c(input: &DeriveInput) -> Result<()> {
    let mut fixed = false;
    for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("repr")) {
        attribute.parse_nested_meta(|meta| {
            fixed |= meta.path.is_ident("C") || meta.path.is_ident("transparent");
            // `align(16)`, `packed(2)`.
            if meta.input.peek(syn::token::Paren) {
                meta.parse_args_tokens()?;
            }
            Ok(())
        })?;
    }
    match fixed {
        true => Ok(()),
        false => Err(Error::new(
            input.ident.span(),
            format!("`{}` needs #[repr(C)]: without it the compiler may reorder its fields", input.ident),
        )),
    }
}

trait ParseArguments {
    fn parse_args_tokens(&self) -> Result<()>;
}

impl ParseArguments for ParseNestedMeta<'_> {
    fn parse_args_tokens(&self) -> Result<()> {
        let content;
        syn::parenthesized!(content in self.input);
        content.parse::<TokenStream>().map(drop)
    }
}

fn of_struct(attributes: &[Attribute]) -> Result<OfStruct> {
    let mut options = OfStruct::default();
    each(attributes, |meta| {
        if meta.path.is_ident("size") {
            options.size = Some(meta.value()?.parse()?);
        } else if meta.path.is_ident("align") {
            options.align = Some(meta.value()?.parse()?);
        } else if meta.path.is_ident("message") {
            options.message = Some(number(meta.value()?.parse()?)?);
        } else if meta.path.is_ident("writer") {
            options.writer = Some(meta.value()?.parse()?);
        } else if meta.path.is_ident("crate") {
            options.path = Some(meta.value()?.parse()?);
        } else {
            return Err(meta.error("expected one of: size, align, message, writer, crate"));
        }
        Ok(())
    })?;
    Ok(options)
}

fn number(kind: Expr) -> Result<Expr> {
    match &kind {
        Expr::Lit(literal) if !matches!(literal.lit, Lit::Int(_)) => {
            Err(Error::new(kind.span(), "expected a number: `message = 1`, another for each struct"))
        }
        _ => Ok(kind),
    }
}

fn of_field(attributes: &[Attribute]) -> Result<OfField> {
    let mut options = OfField::default();
    each(attributes, |meta| {
        if meta.path.is_ident("at") {
            options.at = Some(meta.value()?.parse()?);
        } else if meta.path.is_ident("writer") {
            options.writer = Some(meta.value()?.parse()?);
        } else {
            return Err(meta.error("expected one of: at, writer"));
        }
        Ok(())
    })?;
    Ok(options)
}

fn each(attributes: &[Attribute], mut parse: impl FnMut(ParseNestedMeta<'_>) -> Result<()>) -> Result<()> {
    let mut seen = Vec::new();
    let mut once = |meta: ParseNestedMeta<'_>| {
        let name = meta.path.to_token_stream().to_string();
        if seen.contains(&name) {
            return Err(meta.error(format!("`{name}` appears twice: keep one")));
        }
        seen.push(name);
        parse(meta)
    };
    attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("layout"))
        .try_for_each(|attribute| attribute.parse_nested_meta(&mut once))
}

fn shareable(ty: &Type) -> Result<()> {
    let refuse =
        |what: &str, instead: &str| Err(Error::new(ty.span(), format!("{what} is not a type that host and device share: use {instead}")));
    match ty {
        Type::Array(array) => shareable(&array.elem),
        Type::Group(group) => shareable(&group.elem),
        Type::Paren(paren) => shareable(&paren.elem),
        Type::Reference(_) | Type::Ptr(_) => refuse("a pointer", "u64 for a device address, or an index"),
        Type::BareFn(_) => refuse("a function pointer", "a number that selects the function"),
        Type::Tuple(_) => refuse("a tuple", "a struct with #[repr(C)]: the compiler may reorder a tuple"),
        Type::Slice(_) => refuse("a slice", "an array of fixed length and a count"),
        // A user's own type may have such a name, in its module.
        Type::Path(named) if named.path.segments.len() > 1 && !is_of_the_standard_library(&named.path) => Ok(()),
        Type::Path(named) => match named.path.segments.last().map(|segment| &segment.ident) {
            Some(name) if name == "bool" => refuse("bool", "u8"),
            Some(name) if name == "char" => refuse("char", "u32"),
            Some(name) if name == "usize" => refuse("usize", "u64: its size depends on the target"),
            Some(name) if name == "isize" => refuse("isize", "i64: its size depends on the target"),
            Some(name) if name == "u128" || name == "i128" => refuse(&name.to_string(), "[u64; 2]: its alignment depends on the target"),
            Some(name) if name == "String" || name == "str" => refuse(&name.to_string(), "[u8; N] and a length"),
            Some(name) if name == "Vec" || name == "Box" => refuse(&name.to_string(), "an array, or the device address of a buffer"),
            Some(name) if name == "Option" => refuse("Option", "a value that means none"),
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

fn is_of_the_standard_library(path: &Path) -> bool {
    path.segments.first().is_some_and(|first| ["std", "core", "alloc"].iter().any(|name| first.ident == name))
}

fn optional(path: &TokenStream, declared: Option<&LitInt>) -> TokenStream {
    match declared {
        Some(declared) => quote!(#path::__private::core::option::Option::Some(#declared)),
        None => quote!(#path::__private::core::option::Option::None),
    }
}

pub(crate) fn unraw(ident: &Ident) -> String {
    let text = ident.to_string();
    text.strip_prefix("r#").map(str::to_owned).unwrap_or(text)
}

/// The traits of a struct that is refused, so that each fault has one error. `options` is `None` if they are wrong too: then it may be a message.
fn stub(input: &DeriveInput, options: Option<&OfStruct>, path: &TokenStream) -> TokenStream {
    let (name, text) = (&input.ident, input.ident.to_string());
    let (parameters, arguments, conditions) = input.generics.split_for_impl();
    let where_plain = match conditions {
        _ if input.generics.params.is_empty() => quote!(#conditions),
        Some(conditions) => quote!(#conditions, Self: #path::DeviceBytes),
        None => quote!(where Self: #path::DeviceBytes),
    };
    let kind = match options {
        Some(OfStruct { message: None, .. }) => None,
        Some(OfStruct { message: Some(kind), .. }) => Some(quote!(#kind)),
        None => Some(quote!(u64::MAX)),
    };
    let message = kind.map(|kind| {
        quote! {
            impl #parameters #path::RingMessage for #name #arguments #where_plain {
                const KIND: u64 = #kind;
            }
        }
    });
    // Not `Send` and `Sync` of themselves, as messages are.
    let threads = has_pointer(input).then(|| {
        quote! {
            unsafe impl #parameters Send for #name #arguments #conditions {}
            unsafe impl #parameters Sync for #name #arguments #conditions {}
        }
    });
    quote! {
        // Never used: compilation fails.
        unsafe impl #parameters #path::Layout for #name #arguments #conditions {
            const DESCRIPTOR: #path::LayoutDescriptor = #path::LayoutDescriptor::of::<Self>(#text, &[]);
        }
        #message
        #threads
    }
}

fn has_pointer(input: &DeriveInput) -> bool {
    match &input.data {
        Data::Struct(data) => data.fields.iter().any(|field| matches!(field.ty, Type::Ptr(_))),
        _ => false,
    }
}
