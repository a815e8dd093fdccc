//! The syntax of `kernels!`.

use proc_macro2::{Group, Ident, TokenStream, TokenTree};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Attribute, Error, Path, Result, Token, Type, braced, parenthesized, token};

use super::{Form, Kernel, Kernels, Rings};
use crate::layout::unraw;

mod keyword {
    syn::custom_keyword!(persistent);
    syn::custom_keyword!(flagged);
    syn::custom_keyword!(grid);
    syn::custom_keyword!(layouts);
    syn::custom_keyword!(abi);
    syn::custom_keyword!(ptx);
}

impl Parse for Kernels {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let (mut path, mut layouts, mut abi, mut ptx) = (None, None, None, None);
        loop {
            if take(input, input.peek(Token![crate]), path.is_some())? {
                path = Some(input.call(Path::parse_mod_style)?);
            } else if take(input, input.peek(keyword::layouts), layouts.is_some())? {
                layouts = Some(Punctuated::<Type, Token![,]>::parse_separated_nonempty(input)?.into_iter().collect());
            } else if take(input, input.peek(keyword::abi), abi.is_some())? {
                abi = Some(input.parse()?);
            } else if take(input, input.peek(keyword::ptx), ptx.is_some())? {
                ptx = Some(input.parse()?);
            } else {
                break;
            }
            input.parse::<Token![;]>()?;
        }
        let mut list = Vec::new();
        while !input.is_empty() {
            list.push(input.parse()?);
        }
        match list.is_empty() {
            true => Err(input.error("expected a kernel: `persistent fn step(now: &Particle, then: &mut Particle) { .. }`")),
            false => Ok(Self { path, layouts: layouts.unwrap_or_default(), abi, ptx, list }),
        }
    }
}

fn take(input: ParseStream<'_>, is_name: bool, is_repeated: bool) -> Result<bool> {
    let follows = is_name && input.peek2(Token![:]) && !input.peek2(Token![::]);
    if follows {
        let name = input.call(Ident::parse_any)?;
        if is_repeated {
            return Err(Error::new(name.span(), format!("`{name}` appears twice: keep one")));
        }
        input.parse::<Token![:]>()?;
    }
    Ok(follows)
}

impl Parse for Kernel {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let (conditions, attributes) =
            input.call(Attribute::parse_outer)?.into_iter().partition(|attribute| attribute.path().is_ident("cfg"));
        let visibility = input.parse()?;
        let rings = if input.peek(keyword::persistent) {
            input.parse::<keyword::persistent>()?;
            Some(Rings::Indexed)
        } else if input.peek(keyword::flagged) {
            input.parse::<keyword::flagged>()?;
            Some(Rings::Flagged)
        } else if input.peek(keyword::grid) {
            input.parse::<keyword::grid>()?;
            None
        } else {
            return Err(input.error("expected `persistent fn`, `flagged fn` or `grid fn`"));
        };
        input.parse::<Token![fn]>()?;
        let name: Ident = input.parse()?;
        let text = unraw(&name);
        if ["IMAGE", "ABI"].contains(&text.to_uppercase().as_str()) {
            return Err(Error::new(name.span(), format!("`{name}` is taken: `kernels!` defines `IMAGE` and `ABI`")));
        }
        if !text.is_ascii() {
            let message = format!("`{name}` cannot name a kernel: a name in PTX has ASCII letters, digits and `_`");
            return Err(Error::new(name.span(), message));
        }
        if input.peek(Token![<]) {
            return Err(input.error("a kernel is not generic: write one for each type"));
        }
        let content;
        let parentheses = parenthesized!(content in input);
        if is_method(&content) {
            return Err(content.error("a kernel is a function: its state is the first parameter, `state: &mut State`"));
        }
        let form = match rings {
            Some(rings) if content.peek2(Token![:]) && content.peek3(Token![&]) => each(rings, &content, input)?,
            Some(_) if is_named(&content) && input.peek(token::Brace) => return Err(by_value(&content)),
            Some(rings) if !content.is_empty() && !is_named(&content) => {
                let taken = content.parse()?;
                if !content.is_empty() {
                    return Err(content.error("a persistent kernel has one type of message"));
                }
                input.parse::<Token![->]>()?;
                Form::Handler { rings, input: taken, output: input.parse()?, handler: after_equals(input)? }
            }
            Some(Rings::Flagged) => {
                let message = "a flagged kernel takes messages: `flagged fn step(now: &Particle, then: &mut Particle) { .. }`";
                return Err(Error::new(parentheses.span.join(), message));
            }
            Some(Rings::Indexed) => Form::Launched { arguments: arguments(&content)?, function: after_equals(input)? },
            None => Form::Grid { arguments: arguments(&content)?, function: after_equals(input)? },
        };
        if matches!(form, Form::Each { .. }) && text == text.to_uppercase() {
            return Err(Error::new(name.span(), format!("`{name}` is the name of the kernel's constant: name its function in lower case")));
        }
        Ok(Self { conditions, attributes, visibility, name, form })
    }
}

/// `self`, `&self` or `&mut self`.
fn is_method(content: ParseStream<'_>) -> bool {
    let is_borrowed = content.peek2(Token![self]) || content.peek2(Token![mut]) && content.peek3(Token![self]);
    content.peek(Token![self]) || content.peek(Token![&]) && is_borrowed
}

/// `data: ..`, not `path::To`.
fn is_named(content: ParseStream<'_>) -> bool {
    content.peek2(Token![:]) && !content.peek2(Token![::])
}

/// The error of `step(now: Particle, ..) { .. }`.
fn by_value(content: ParseStream<'_>) -> Error {
    match content.parse::<Ident>().and_then(|_| content.parse::<Token![:]>()) {
        Ok(_) => of_message(content),
        Err(error) => error,
    }
}

fn of_message(content: ParseStream<'_>) -> Error {
    match content.parse::<Type>() {
        Ok(ty) => Error::new(ty.span(), format!("a kernel borrows its message from the ring: take `&{}`", ty.to_token_stream())),
        Err(error) => error,
    }
}

fn each(rings: Rings, content: ParseStream<'_>, input: ParseStream<'_>) -> Result<Form> {
    let parameter = |mutable: bool| -> Result<(Ident, Type)> {
        let name = content.parse()?;
        content.parse::<Token![:]>()?;
        if !mutable && !content.peek(Token![&]) {
            return Err(of_message(content));
        }
        let borrowed = content.parse::<Token![&]>().and_then(|_| if mutable { content.parse::<Token![mut]>().map(drop) } else { Ok(()) });
        borrowed.map_err(|error| Error::new(error.span(), "the answer is `&mut`"))?;
        if !mutable && content.peek(Token![mut]) {
            return Err(content.error("the message is `&`: a first parameter `&mut` is the kernel's state, and the answer is the last"));
        }
        Ok((name, content.parse()?))
    };
    let has_state = {
        let ahead = content.fork();
        ahead.parse::<Ident>()?;
        ahead.parse::<Token![:]>()?;
        ahead.parse::<Token![&]>()?;
        ahead.peek(Token![mut])
    };
    let comma = |expected: &str| content.parse::<Token![,]>().map_err(|_| content.error(expected));
    let mut state = None;
    if has_state {
        state = Some(parameter(true)?);
        comma("expected the message: `persistent fn sum(state: &mut u64, now: &Number, then: &mut Number) { .. }`")?;
    }
    let taken = parameter(false)?;
    comma("expected the answer: `persistent fn step(now: &Particle, then: &mut Particle) { .. }`")?;
    let given = parameter(true)?;
    content.parse::<Option<Token![,]>>()?;
    if !content.is_empty() {
        return Err(content.error("a kernel takes one message and writes one answer; a state is the first parameter: `state: &mut State`"));
    }
    if input.peek(Token![->]) {
        return Err(input.error("a kernel returns nothing: it writes its answer to the parameter `&mut`"));
    }
    let body;
    let braces = braced!(body in input);
    let mut group = Group::new(proc_macro2::Delimiter::Brace, body.parse()?);
    group.set_span(braces.span.join());
    Ok(Form::Each { rings, state, input: taken, output: given, body: group })
}

fn arguments(content: ParseStream<'_>) -> Result<Vec<(Ident, Type)>> {
    let argument = |input: ParseStream<'_>| {
        let name: Ident = input.parse()?;
        input.parse::<Token![:]>()?;
        Ok((name, input.parse()?))
    };
    Ok(content.parse_terminated(argument, Token![,])?.into_iter().collect())
}

fn after_equals(input: ParseStream<'_>) -> Result<TokenStream> {
    let expected =
        "expected `= EXPRESSION;`: only a kernel of a message, `now: &Particle`, and an answer, `then: &mut Particle`, has a body";
    input.parse::<Token![=]>().map_err(|error| Error::new(error.span(), expected))?;
    let mut expression = TokenStream::new();
    while !input.peek(Token![;]) {
        expression.extend([input.parse::<TokenTree>()?]);
    }
    input.parse::<Token![;]>()?;
    Ok(expression)
}
