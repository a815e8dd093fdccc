//! The syntax of `kernels!`.

use proc_macro2::{Group, Ident, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Attribute, Error, GenericArgument, PathArguments, Result, Token, Type, braced, parenthesized, token};

use super::{Form, Kernel, Kernels, Parameter, Rings, Role};
use crate::layout::unraw;

/// As many as a tuple of the launch has.
const PARAMETERS: usize = 12;

mod keyword {
    syn::custom_keyword!(persistent);
    syn::custom_keyword!(flagged);
    syn::custom_keyword!(grouped);
    syn::custom_keyword!(block);
    syn::custom_keyword!(grid);
    syn::custom_keyword!(layouts);
    syn::custom_keyword!(abi);
    syn::custom_keyword!(ptx);
}

impl Parse for Kernels {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let path = input.parse()?;
        input.parse::<Token![;]>()?;
        let (mut layouts, mut abi, mut ptx) = (None, None, None);
        loop {
            if take(input, input.peek(keyword::layouts), layouts.is_some())? {
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
        let is_unsafe = input.peek(Token![unsafe]);
        if is_unsafe {
            input.parse::<Token![unsafe]>()?;
        }
        let rings = if input.peek(keyword::persistent) {
            input.parse::<keyword::persistent>()?;
            Some(Rings::Indexed)
        } else if input.peek(keyword::flagged) {
            input.parse::<keyword::flagged>()?;
            Some(Rings::Flagged)
        } else if input.peek(keyword::grouped) {
            input.parse::<keyword::grouped>()?;
            Some(Rings::Grouped)
        } else if input.peek(keyword::block) {
            input.parse::<keyword::block>()?;
            Some(Rings::Block)
        } else if input.peek(keyword::grid) {
            input.parse::<keyword::grid>()?;
            None
        } else {
            return Err(input.error("expected `persistent fn`, `flagged fn`, `grouped fn`, `block fn` or `grid fn`"));
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
            Some(_) if is_named(&content) && takes_option(&content) && !is_unsafe => {
                let expected = "a kernel that is called without a message has a state, the first parameter: `state: &mut State`";
                return Err(content.error(expected));
            }
            Some(_) if is_named(&content) && input.peek(Token![->]) => {
                let (name, _, ty) = (content.parse()?, content.parse::<Token![:]>()?, content.parse()?);
                return Err(is_state(&name, &ty));
            }
            Some(_) if is_named(&content) && input.peek(token::Brace) => return Err(by_value(&content)),
            Some(rings) if !content.is_empty() && !is_named(&content) => {
                let taken = content.parse()?;
                if !content.is_empty() {
                    return Err(content.error("a persistent kernel has one type of message"));
                }
                input.parse::<Token![->]>()?;
                Form::Handler { rings, input: taken, output: input.parse()?, handler: after_equals(input)? }
            }
            Some(rings @ (Rings::Flagged | Rings::Grouped | Rings::Block)) => {
                let word = match rings {
                    Rings::Flagged => "flagged",
                    Rings::Grouped => "grouped",
                    _ => "block",
                };
                let message = format!("a {word} kernel takes messages: `{word} fn step(now: &Particle, then: &mut Particle) {{ .. }}`");
                return Err(Error::new(parentheses.span.join(), message));
            }
            Some(Rings::Indexed) => Form::Launched { arguments: arguments(&content)?, function: after_equals(input)? },
            None if input.peek(token::Brace) || input.peek(Token![->]) => elements(&content, input, &name, is_unsafe)?,
            None => Form::Grid { arguments: arguments(&content)?, function: after_equals(input)? },
        };
        match (&form, is_unsafe) {
            (Form::Launched { .. } | Form::Grid { .. }, false) => {
                let kind = if rings.is_some() { "persistent" } else { "grid" };
                let message = format!("a kernel of an `unsafe fn` is declared `unsafe {kind} fn`: its launch is unsafe");
                return Err(Error::new(name.span(), message));
            }
            (Form::Each { .. } | Form::Actor { .. } | Form::Handler { .. } | Form::Elements { .. }, true) => {
                return Err(Error::new(name.span(), "this kernel is safe to launch: remove `unsafe`"));
            }
            _ => {}
        }
        if matches!(form, Form::Each { .. } | Form::Actor { .. } | Form::Elements { .. }) && text == text.to_uppercase() {
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
        comma(match input.peek(Token![->]) {
            true => "expected the message: `persistent fn watch(state: &mut State, now: Option<&Order>) -> Option<Alarm> { .. }`",
            false => "expected the message: `persistent fn sum(state: &mut u64, now: &Number, then: &mut Number) { .. }`",
        })?;
    }
    if let Some(state) = state.take_if(|_| takes_option(content)) {
        return actor(rings, state, content, input);
    }
    if let (Rings::Block, Some((name, _))) = (rings, &state) {
        return Err(Error::new(
            name.span(),
            "with a state, one lane answers all messages: use `persistent fn`, or write a handler for the lanes of a block",
        ));
    }
    let taken = parameter(false)?;
    if let Some(ty) = of_option(&taken.1).or((content.is_empty() && input.peek(Token![->])).then_some(&taken.1)) {
        let (name, ty) = (&taken.0, ty.to_token_stream());
        let expected = if state.is_some() || of_option(&taken.1).is_some() {
            format!("a kernel that returns its messages takes `{name}: Option<&{ty}>`")
        } else {
            format!("a kernel writes its answer through a parameter: take `{name}: &{ty}, answer: &mut Answer` and return nothing")
        };
        return Err(Error::new(taken.1.span(), expected));
    }
    comma("expected the answer: `persistent fn step(now: &Particle, then: &mut Particle) { .. }`")?;
    if takes_option(content) {
        return Err(is_state(&taken.0, &taken.1));
    }
    let given = parameter(true)?;
    content.parse::<Option<Token![,]>>()?;
    if !content.is_empty() {
        return Err(content.error("a kernel takes one message and writes one answer; a state is the first parameter: `state: &mut State`"));
    }
    if input.peek(Token![->]) {
        return Err(input.error("a kernel returns nothing: it writes its answer to the parameter `&mut`"));
    }
    Ok(Form::Each { rings, state, input: taken, output: given, body: body(input)? })
}

/// The error of a first parameter that is no `&mut`, where a state is one.
fn is_state(name: &Ident, ty: &Type) -> Error {
    Error::new(ty.span(), format!("the first parameter is the kernel's state: take `{name}: &mut {}`", ty.to_token_stream()))
}

/// `name: Option<..>`
fn takes_option(content: ParseStream<'_>) -> bool {
    let ahead = content.fork();
    let ty = ahead.parse::<Ident>().and_then(|_| ahead.parse::<Token![:]>()).and_then(|_| ahead.parse::<Type>());
    ty.is_ok_and(|ty| of_option(&ty).is_some())
}

/// The type in an `Option`.
fn of_option(ty: &Type) -> Option<&Type> {
    let Type::Path(path) = plain(ty) else { return None };
    let last = path.path.segments.last().filter(|last| last.ident == "Option")?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else { return None };
    match arguments.args.first() {
        Some(GenericArgument::Type(ty)) => Some(plain(ty)),
        _ => None,
    }
}

/// A type that a macro has passed on is in a group.
fn plain(ty: &Type) -> &Type {
    match ty {
        Type::Group(group) => plain(&group.elem),
        Type::Paren(paren) => plain(&paren.elem),
        ty => ty,
    }
}

/// `state: &mut State`, then `now: Option<&Order>) -> Option<Alarm> { .. }`
fn actor(rings: Rings, state: (Ident, Type), content: ParseStream<'_>, input: ParseStream<'_>) -> Result<Form> {
    let name: Ident = content.parse()?;
    content.parse::<Token![:]>()?;
    let written: Type = content.parse()?;
    content.parse::<Option<Token![,]>>()?;
    if !content.is_empty() {
        return Err(content.error(match input.peek(Token![->]) {
            true => "a kernel that is called without a message has two parameters, its state and the message",
            false => "a kernel that is called without a message returns its own: `-> Option<Alarm>`",
        }));
    }
    if rings != Rings::Indexed {
        return Err(Error::new(written.span(), "only a `persistent fn` is called without a message: here, each message has one answer"));
    }
    let taken = match of_option(&written) {
        Some(Type::Reference(reference))
            if reference.mutability.is_none() && reference.lifetime.as_ref().is_none_or(|lifetime| lifetime.ident == "_") =>
        {
            (*reference.elem).clone()
        }
        inner => {
            let of_message = match inner {
                Some(Type::Reference(reference)) => reference.elem.to_token_stream(),
                inner => inner.to_token_stream(),
            };
            return Err(Error::new(
                written.span(),
                format!("a kernel borrows its message from the ring: take `{name}: Option<&{of_message}>`"),
            ));
        }
    };
    let returned: Option<(Token![->], Type)> = match input.peek(Token![->]) {
        true => Some((input.parse()?, input.parse()?)),
        false => None,
    };
    let Some((output, returned)) = returned.as_ref().and_then(|(_, returned)| of_option(returned).zip(Some(returned))) else {
        let message = "a kernel that is called without a message returns the one that it sends: `-> Option<Alarm>`";
        return Err(Error::new(returned.map_or(name.span(), |(_, returned)| returned.span()), message));
    };
    if input.peek(Token![=]) {
        return Err(
            input.error("this kernel has a body: `{ .. }`; a `Handler` is declared `persistent fn watch(Order) -> Alarm = HANDLER;`")
        );
    }
    let (of_state, ty) = &state;
    let declared = quote!((#of_state: &mut #ty, #name: #written) -> #returned);
    let output = output.clone();
    Ok(Form::Actor { state, input: (name, taken), declared, output, body: body(input)? })
}

/// `grid fn saxpy(x: &f32, y: &mut f32, a: f32) { .. }`
fn elements(content: ParseStream<'_>, input: ParseStream<'_>, kernel: &Ident, is_unsafe: bool) -> Result<Form> {
    let mut parameters: Vec<Parameter> = Vec::new();
    while !content.is_empty() {
        let mutable = content.parse()?;
        let name: Ident = content.parse()?;
        content.parse::<Token![:]>()?;
        let written: Type = content.parse()?;
        let (role, ty) = match plain(&written).clone() {
            Type::Reference(reference) => {
                // With a longer one, safe code could keep a reference to memory that is freed after the launch.
                if let Some(lifetime) = reference.lifetime.filter(|lifetime| lifetime.ident != "_") {
                    return Err(Error::new(lifetime.span(), format!("`{name}` is borrowed for this call alone: remove `{lifetime}`")));
                }
                let (ty, span) = (*reference.elem, reference.and_token.span);
                if is_index(&ty) {
                    return Err(Error::new(span, format!("the place of the element is a value: `{name}: Index`")));
                }
                if matches!(plain(&ty), Type::Path(path) if path.path.is_ident("str")) {
                    return Err(Error::new(span, format!("text is bytes to a kernel: take `{name}: &[u8]`")));
                }
                let role = match (&ty, reference.mutability) {
                    (Type::Slice(_), Some(_)) => {
                        let message = format!("a thread writes to its own element: take `{name}: &mut T`");
                        return Err(Error::new(span, message));
                    }
                    (Type::Slice(_), None) => Role::All,
                    (_, Some(_)) => Role::ElementMut,
                    (_, None) => Role::Element,
                };
                (role, if let Type::Slice(slice) = ty { *slice.elem } else { ty })
            }
            ty if is_index(&ty) && parameters.is_empty() => (Role::Index, ty),
            ty if is_index(&ty) => return Err(Error::new(ty.span(), "the place of the element is the first parameter: `at: Index`")),
            ty => (Role::Scalar, ty),
        };
        parameters.push(Parameter { mutable, name, role, ty, written });
        if !content.is_empty() {
            content.parse::<Token![,]>()?;
        }
    }
    if input.peek(Token![->]) {
        return Err(input.error("a kernel returns nothing: it writes to its parameters `&mut T`"));
    }
    let has = |role| parameters.iter().any(|parameter| parameter.role == role);
    if is_unsafe && !has(Role::ElementMut) {
        let message = format!(
            "the body of an `unsafe grid fn` is a function: `unsafe grid fn {kernel}(data: DevicePointer<f32>, count: u64) = FUNCTION;`"
        );
        return Err(Error::new(kernel.span(), message));
    }
    if !has(Role::ElementMut) {
        let message = format!("`{kernel}` writes nothing: a parameter `y: &mut T` is its output");
        return Err(Error::new(kernel.span(), message));
    }
    if parameters.len() > PARAMETERS {
        return Err(Error::new(
            kernel.span(),
            format!("a kernel over buffers has at most {PARAMETERS} parameters: put values into a struct"),
        ));
    }
    Ok(Form::Elements { parameters, body: body(input)? })
}

fn is_index(ty: &Type) -> bool {
    matches!(plain(ty), Type::Path(path) if path.path.segments.last().is_some_and(|last| last.ident == "Index"))
}

fn body(input: ParseStream<'_>) -> Result<Group> {
    let body;
    let braces = braced!(body in input);
    let mut group = Group::new(proc_macro2::Delimiter::Brace, body.parse()?);
    group.set_span(braces.span.join());
    Ok(group)
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
