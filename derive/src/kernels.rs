//! `kernels!`: device entries, host functions, image and ABI.
//!
//! Function bodies and expressions pass unchanged, so the compiler's errors point into them.
//!
//! # Soundness
//!
//! The expansion is `unsafe`, in a module of a user who writes none. So nothing in it may depend on a meaning that the user can change:
//!
//! | a user's | cannot change | because |
//! |---|---|---|
//! | crate, module or dependency | a path | each begins with the `$crate` of `kernels!` |
//! | trait with a blanket implementation | a call | calls are by path: in `x.f()`, a trait's `f(self)` comes before an `f(&self)` of the type |
//! | constant or static | a binding | bindings, and items in blocks, have names that begin with `__ringmem_`: a pattern `name` is a constant, if there is one |
//! | macro in the place of a type, which expands differently each time | a type | trusted code names an alias, in which the type stands once. Where the user's tokens stand again, as in a constant's declaration or a function, the compiler compares |
//! | expression in a type | `unsafe` | no user's tokens stand in an `unsafe` block |
//! | attribute, a macro, of a kernel | `unsafe` | it stands on functions and constants without `unsafe`. Attributes of the expansion have names of the language, with which a macro's are ambiguous: `diagnostic::..` begins with a module |
//! | attribute that removes or replaces the function | the called function | it is passed through a function that requires a safe function of any lifetime |

use proc_macro2::{Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Attribute, Error, Expr, LitStr, Result, Type, Visibility, parse_quote};

use self::elements::{Parameter, Role};
use crate::layout::unraw;

mod elements;
mod parse;

struct Kernels {
    /// The crate `ringmem_kernels`: its `$crate`.
    path: TokenTree,
    layouts: Vec<Type>,
    /// An existing `Abi` with all layouts.
    abi: Option<Expr>,
    ptx: Option<LitStr>,
    list: Vec<Kernel>,
}

struct Kernel {
    /// The attributes `cfg`, which hold for all items of the kernel.
    conditions: Vec<Attribute>,
    attributes: Vec<Attribute>,
    visibility: Visibility,
    name: Ident,
    form: Form,
}

#[derive(Clone, Copy, PartialEq)]
enum Rings {
    Indexed,
    Flagged,
    Grouped,
    Block,
}

#[allow(clippy::large_enum_variant, reason = "a few values, at compile time")]
enum Form {
    /// `persistent fn step(now: &Particle, then: &mut Particle) { .. }`, optionally with `state: &mut State` first.
    Each { rings: Rings, state: Option<(Ident, Type)>, input: (Ident, Type), output: (Ident, Type), body: Group },
    /// `persistent fn watch(state: &mut State, now: Option<&Order>) -> Option<Alarm> { .. }`
    Actor { state: (Ident, Type), input: (Ident, Type), declared: TokenStream, output: Type, body: Group },
    /// `persistent fn step(Particle) -> Particle = HANDLER;`
    Handler { rings: Rings, input: Type, output: Type, handler: TokenStream },
    /// `unsafe persistent fn count(data: DevicePointer<u8>, length: u64) = FUNCTION;`
    Launched { arguments: Vec<(Ident, Type)>, function: TokenStream },
    /// `unsafe grid fn scale(data: DevicePointer<f32>, length: u64) = FUNCTION;`
    Grid { arguments: Vec<(Ident, Type)>, function: TokenStream },
    /// `grid fn saxpy(x: &f32, y: &mut f32, a: f32) { .. }`
    Elements { parameters: Vec<Parameter>, body: Group },
}

struct Expanded {
    items: TokenStream,
    /// Its entry in the image.
    entry: TokenStream,
    /// Its host form.
    host: TokenStream,
}

pub(crate) fn expand(input: TokenStream) -> Result<TokenStream> {
    let Kernels { mut path, layouts, abi, ptx, list } = syn::parse2(input)?;
    // One context for all tokens of the expansion, the context of `kernels!`: with another one for `$crate`, the compiler's errors point at the whole list.
    path.set_span(Span::call_site());
    let path = path.to_token_stream();
    let conditions = list.iter().map(Kernel::condition).collect::<Result<Vec<_>>>()?;
    let messages = Types::of("__RingmemMessage", list.iter().zip(&conditions), Form::messages);
    let elements = Types::of("__RingmemElement", list.iter().zip(&conditions), Form::elements);
    if let Some(file) = &ptx {
        checked_in(file)?;
    }
    let ptx = match ptx.map(|file| file.value()).or_else(built) {
        Some(file) => quote!(#path::__layouts::__private::core::include_bytes!(#file)),
        None => quote!(b""),
    };
    let (abi, own) = match abi {
        // Once, and outside of `unsafe`.
        Some(abi) => (quote!(__RINGMEM_ABI), Some(quote!(#[doc(hidden)] const __RINGMEM_ABI: #path::__layouts::Abi = #abi;))),
        None => {
            let set = messages.set(&layouts, &path);
            let own = quote! {
                /// The layouts that the host and these kernels share.
                pub const ABI: #path::__layouts::Abi = #path::__layouts::__private::with_kernels(
                    #path::__layouts::Abi::of(#path::__layouts::layout_set!(#path::__layouts::LAYOUTS, #set, __RINGMEM_ELEMENTS;)),
                    __RINGMEM_SIGNATURES,
                );
            };
            (quote!(ABI), Some(own))
        }
    };
    let (mut items, mut entries, mut hosts) = (TokenStream::new(), TokenStream::new(), Vec::new());
    for (index, kernel) in list.iter().enumerate() {
        let (only_if, position) = (only_if(&conditions[index]), position(&path, &conditions[..index]));
        let Expanded { items: item, entry, host } = kernel.expand(&path, &abi, [&messages, &elements], &quote!(__RINGMEM.1[#position]));
        items.extend(item);
        entries.extend(quote!(#only_if #entry,));
        hosts.push(quote!(#only_if #host));
    }
    let once = once_per_crate();
    let device_errors = device_errors().map(|said| {
        let message = format!("the kernels do not compile for a GPU:\n{said}");
        // Not `compile_error!`, after which the host's compiler may leave out its own errors.
        quote!(const _: () = #path::__layouts::__private::core::panic!("{}", #message);)
    });
    let table = messages.table(&path, &hosts);
    let signatures = list.iter().zip(&conditions).filter_map(|(kernel, condition)| {
        let (only_if, text) = (only_if(condition), unraw(&kernel.name));
        let Form::Elements { parameters, .. } = &kernel.form else {
            // Of several warps. Numbers that are no role of a parameter.
            let kind: u64 = match kernel.form.rings()? {
                Rings::Grouped => 16,
                Rings::Block => 17,
                Rings::Indexed | Rings::Flagged => return None,
            };
            return Some(quote!(#only_if (#text, &[(#kind, 0)])));
        };
        let typed = parameters.iter().map(|parameter| {
            let (role, place) = (parameter.role as u64, elements.index_of(&path, &parameter.ty));
            let ty = place.map_or(quote!(0), |place| quote!(__RINGMEM_ELEMENTS[#place].hash));
            quote!((#role, #ty))
        });
        Some(quote!(#only_if (#text, &[#(#typed),*])))
    });
    let signatures = quote! {
        #[doc(hidden)]
        const __RINGMEM_SIGNATURES: &[#path::__layouts::__private::Signature] = &[#(#signatures),*];
    };
    let aliases = [messages.aliases(), elements.aliases()];
    let elements = elements.elements(&path);
    Ok(quote! {
        #own
        #(#aliases)*

        /// The kernels, as a backend loads them.
        #[cfg(not(target_os = "cuda"))]
        pub const IMAGE: #path::__layouts::Image = #path::__layouts::Image { ptx: #ptx, host: &[#entries], abi: #abi };

        #[cfg(target_os = "cuda")]
        const _: () = {
            #[unsafe(no_mangle)]
            #[used]
            static RINGMEM_ABI: u64 = #abi.hash;
        };

        #table
        #elements
        #signatures
        #items
        #once
        #device_errors

        // Last, so that the last error of a second use names it.
        #[doc(hidden)]
        mod __use_kernels_once_per_crate {}
    })
}

/// The file that `ringmem_ptx_builder::embed` wrote, or that another build script wrote as `kernels.ptx`.
fn built() -> Option<String> {
    let written = || std::env::var_os("OUT_DIR").map(|out| std::path::Path::new(&out).join("kernels.ptx"));
    let file = match embedded() {
        Some((_, false)) => None,
        Some((file, true)) => Some(file),
        None => written(),
    };
    file.filter(|file| file.exists())?.to_str().map(str::to_owned)
}

/// The file that `embed` wrote for this package, and whether this is the package's library, from which it is compiled: a program, an example or a test with
/// kernels of its own would embed the library's.
fn embedded() -> Option<(std::path::PathBuf, bool)> {
    let file = std::env::var_os("RINGMEM_EMBEDDED_PTX")?;
    // Cargo sets these for programs and examples, and for tests and benches.
    let is_other = ["CARGO_BIN_NAME", "CARGO_TARGET_TMPDIR"].iter().any(|name| std::env::var_os(name).is_some());
    Some((file.into(), !is_other))
}

/// The errors of the device's compiler, which `embed` leaves to this crate.
fn device_errors() -> Option<String> {
    embedded().filter(|(_, is_here)| *is_here)?;
    std::fs::read_to_string(std::env::var_os("RINGMEM_DEVICE_ERRORS")?).ok()
}

/// Refuses a file that is not PTX, or may not end, such as a device. A missing one is `include_bytes!`'s error.
fn checked_in(file: &LitStr) -> Result<()> {
    let folder = file.span().unwrap().local_file().and_then(|source| source.parent().map(std::path::Path::to_owned));
    let Some(path) = folder.map(|folder| folder.join(file.value())) else { return Ok(()) };
    if path.exists() && !path.is_file() {
        return Err(Error::new(file.span(), format!("`{}` is not a file", file.value())));
    }
    let Ok(bytes) = std::fs::read(path) else { return Ok(()) };
    let is_ptx = std::str::from_utf8(&bytes).is_ok_and(|text| {
        let has = |directive| text.lines().any(|line| line.starts_with(directive));
        has(".version ") && has(".target ")
    });
    let message = || format!("`{}` is not PTX: it has no `.version` and `.target`", file.value());
    if is_ptx { Ok(()) } else { Err(Error::new(file.span(), message())) }
}

/// Exports a macro, which is defined in the root of its crate: a second use in any module is an error of a name that is defined twice. PTX has one
/// symbol `RINGMEM_ABI`, but a crate without a build script for PTX can use `kernels!` in several modules.
fn once_per_crate() -> TokenStream {
    let once = quote! {
        #[doc(hidden)]
        #[macro_export]
        macro_rules! use_kernels_once_in_a_crate_that_is_compiled_to_ptx {
            () => {};
        }
    };
    match embedded() {
        // The PTX has no kernels of unit tests.
        Some((_, true)) => quote!(#[cfg(not(test))] #once),
        _ => quote!(#[cfg(target_os = "cuda")] #once),
    }
}

/// A name of the expansion's own, which no constant, static or type of the user has.
fn own(name: &str) -> Ident {
    Ident::new(&format!("__ringmem_{name}"), Span::mixed_site())
}

fn only_if(condition: &Option<TokenStream>) -> Option<TokenStream> {
    condition.as_ref().map(|condition| quote!(#[cfg(#condition)]))
}

/// How many of these come before an item, where some are compiled on a condition.
fn position(path: &TokenStream, before: &[Option<TokenStream>]) -> TokenStream {
    let always = before.iter().filter(|condition| condition.is_none()).count();
    let some = before.iter().flatten();
    quote!({ #always #(+ #path::__layouts::__private::core::cfg!(#some) as usize)* })
}

/// The types of messages or elements, each with the condition of its kernels, or `None` if a kernel without a condition has it.
struct Types<'a> {
    /// Of the aliases' names.
    prefix: &'static str,
    types: Vec<&'a Type>,
    conditions: Vec<Option<TokenStream>>,
}

impl<'a> Types<'a> {
    fn of(
        prefix: &'static str,
        kernels: impl Iterator<Item = (&'a Kernel, &'a Option<TokenStream>)>,
        of_form: fn(&'a Form) -> Vec<&'a Type>,
    ) -> Self {
        let mut types = Self { prefix, types: Vec::new(), conditions: Vec::new() };
        for (kernel, condition) in kernels {
            for ty in of_form(&kernel.form) {
                match types.types.iter().position(|listed| is_same(listed, ty)) {
                    Some(listed) => {
                        let both = types.conditions[listed].as_ref().zip(condition.as_ref()).map(|(a, b)| quote!(any(#a, #b)));
                        types.conditions[listed] = both;
                    }
                    None => {
                        types.types.push(ty);
                        types.conditions.push(condition.clone());
                    }
                }
            }
        }
        types
    }

    /// The name of a type's alias, where the type is listed: two errors about it are one.
    fn alias(&self, ty: &Type) -> Ident {
        let index = self.types.iter().position(|listed| is_same(listed, ty)).unwrap_or(self.types.len());
        let span = self.types.get(index).map_or_else(|| ty.span(), |listed| listed.span());
        Ident::new(&format!("{}{index}", self.prefix), Span::call_site().located_at(span))
    }

    fn aliases(&self) -> TokenStream {
        let aliases = self.types.iter().zip(&self.conditions).map(|(ty, condition)| {
            let (alias, only_if) = (self.alias(ty), only_if(condition));
            quote!(#only_if #[doc(hidden)] type #alias = #ty;)
        });
        aliases.collect()
    }

    /// The place of a listed type, if its condition holds.
    fn index_of(&self, path: &TokenStream, ty: &Type) -> Option<TokenStream> {
        let index = self.types.iter().position(|listed| is_same(listed, ty))?;
        Some(position(path, &self.conditions[..index]))
    }

    /// The layouts of the elements in one body: there, a type that cannot be an element is one error.
    fn elements(&self, path: &TokenStream) -> TokenStream {
        let elements = self.types.iter().zip(&self.conditions).map(|(ty, condition)| {
            let (path, only_if, alias) = (crate::spanned(path, ty.span()), only_if(condition), self.alias(ty));
            quote_spanned!(ty.span()=> #only_if #path::__layouts::__private::element::<#alias>())
        });
        let elements: Vec<_> = elements.collect();
        quote! {
            #[doc(hidden)]
            const __RINGMEM_ELEMENTS: &[#path::__layouts::LayoutDescriptor] = &[#(#elements),*];
        }
    }

    /// The message with this index, if its condition holds.
    fn place(&self, path: &TokenStream, index: usize) -> TokenStream {
        let position = position(path, &self.conditions[..index]);
        quote!(__RINGMEM.0[#position])
    }

    /// The messages' kinds and layouts and the host's functions in one body: there, another type is one error.
    fn table(&self, path: &TokenStream, hosts: &[TokenStream]) -> TokenStream {
        let messages = self.types.iter().zip(&self.conditions).map(|(ty, condition)| {
            let (path, only_if, alias) = (crate::spanned(path, ty.span()), only_if(condition), self.alias(ty));
            quote_spanned!(ty.span()=> #only_if #path::__layouts::__private::message::<#alias>())
        });
        let messages: Vec<_> = messages.collect();
        let checks = self.types.iter().enumerate().map(|(index, ty)| {
            let (spanned, only_here) = (crate::spanned(path, ty.span()), only_if(&self.conditions[index]));
            let (place, others) = (self.place(path, index), (0..index).map(|other| self.place(path, other)));
            let only_others = self.conditions[..index].iter().map(only_if);
            quote_spanned!(ty.span()=> #only_here #spanned::__layouts::__private::another_kind(#place, &[#(#only_others #others),*]);)
        });
        let message = quote!(#path::__layouts::LayoutDescriptor);
        quote! {
            #[cfg(not(target_os = "cuda"))]
            #[doc(hidden)]
            const __RINGMEM: (&[(u64, #message)], &[unsafe fn(&dyn #path::__layouts::image::KernelHost, &[u64])]) =
                (&[#(#messages),*], &[#(#hosts),*]);
            #[cfg(target_os = "cuda")]
            const __RINGMEM: (&[(u64, #message)],) = (&[#(#messages),*],);
            const _: () = { #(#checks)* };
        }
    }

    fn set(&self, layouts: &[Type], path: &TokenStream) -> TokenStream {
        let more = (0..self.types.len()).filter(|&index| !layouts.iter().any(|listed| is_same(listed, self.types[index])));
        let more = more.map(|index| {
            let (only_if, place) = (only_if(&self.conditions[index]), self.place(path, index));
            quote!(#only_if #place.1)
        });
        quote!(&[#(<#layouts as #path::__layouts::Layout>::DESCRIPTOR,)* #(#more),*])
    }
}

fn is_same(a: &Type, b: &Type) -> bool {
    a.to_token_stream().to_string() == b.to_token_stream().to_string()
}

impl Form {
    /// Those of a kernel whose entry the macro writes.
    fn rings(&self) -> Option<Rings> {
        match self {
            Self::Each { rings, .. } | Self::Handler { rings, .. } => Some(*rings),
            Self::Actor { .. } => Some(Rings::Indexed),
            Self::Launched { .. } | Self::Grid { .. } | Self::Elements { .. } => None,
        }
    }

    fn messages(&self) -> Vec<&Type> {
        match self {
            Self::Each { input: (_, input), output: (_, output), .. }
            | Self::Actor { input: (_, input), output, .. }
            | Self::Handler { input, output, .. } => vec![input, output],
            Self::Launched { .. } | Self::Grid { .. } | Self::Elements { .. } => Vec::new(),
        }
    }

    /// Types of elements and values.
    fn elements(&self) -> Vec<&Type> {
        match self {
            Self::Elements { parameters, .. } => {
                parameters.iter().filter(|parameter| parameter.role != Role::Index).map(|parameter| &parameter.ty).collect()
            }
            _ => Vec::new(),
        }
    }
}

impl Kernel {
    /// Both sides have the kernel if this predicate of `cfg` holds.
    fn condition(&self) -> Result<Option<TokenStream>> {
        let predicates = self.conditions.iter().map(|attribute| attribute.meta.require_list().map(|list| &list.tokens));
        let predicates = predicates.collect::<Result<Vec<_>>>()?;
        Ok((!predicates.is_empty()).then(|| quote!(all(#(#predicates),*))))
    }

    fn expand(&self, path: &TokenStream, abi: &TokenStream, [messages, elements]: [&Types<'_>; 2], run: &TokenStream) -> Expanded {
        let Self { conditions, attributes, visibility, name, form } = self;
        let text = unraw(name);
        let only_if = quote!(#(#conditions)*);
        let deprecated = attributes.iter().find(|attribute| attribute.path().is_ident("deprecated"));
        // A deprecated function that the kernel called would warn of the kernel itself.
        let called = if deprecated.is_some() { format_ident!("__{text}_itself") } else { name.clone() };
        let constant = Ident::new(&text.to_uppercase(), name.span());
        let (entry, body) = (format_ident!("__{text}_on_the_device"), format_ident!("__{text}_without_unsafe"));
        let [machine, lanes, host, words, controls, epoch, idle_ns, batch, groups] =
            ["machine", "lanes", "host", "words", "controls", "epoch", "idle_ns", "batch", "groups"].map(own);
        // A second kernel of this name would be a second entry of it. An attribute can remove the function or the constant, but not this.
        let once = format_ident!("__{text}_is_a_kernel", span = name.span());
        let once = quote! {
            #only_if
            #[doc(hidden)]
            mod #once {}
        };
        if let Form::Elements { parameters, body } = form {
            let declared = parameters.iter().map(Parameter::declared);
            let names: Vec<&Ident> = parameters.iter().map(|parameter| &parameter.name).collect();
            let function = self.function(&called, &quote!((#(#declared),*)), &quote!(#(#names),*), body);
            let mut expanded = elements::expand(self, parameters, elements, path, &called, run);
            expanded.items.extend([function, once]);
            return expanded;
        }
        let kernel = quote!(#path::__layouts::kernel);
        let launch = quote!(&#path::Launch::new(#controls, #epoch, #idle_ns, #batch, #abi.hash));

        // The user's expression, outside of `unsafe`.
        let evaluated = match form {
            Form::Each { .. } | Form::Actor { .. } => called.to_token_stream(),
            Form::Handler { handler: expression, .. }
            | Form::Launched { function: expression, .. }
            | Form::Grid { function: expression, .. } => expression.clone(),
            Form::Elements { .. } => TokenStream::new(),
        };
        let mut given = own("given");
        given.set_span(given.span().located_at(evaluated.span()));
        let span = Span::call_site().located_at(evaluated.span());
        let here = crate::spanned(path, span);
        let of_rings = |rings: &Rings| match rings {
            Rings::Indexed | Rings::Flagged | Rings::Block => (Vec::new(), quote!(())),
            Rings::Grouped => {
                let shared = parse_quote!(#kernel::DevicePointer<#path::__layouts::ring::groups::Groups<u64>>);
                (vec![(groups.clone(), shared)], groups.to_token_stream())
            }
        };
        let (arguments, call) = match form {
            Form::Each { rings, state, input: (_, input), output: (_, output), .. } => {
                let (input, output, [kind, _]) = (messages.alias(input), messages.alias(output), rings.names());
                let run = match state {
                    Some(_) => quote_spanned!(span=> fold::<#path::__private::#kind, _, _, _, #input, #output, _>),
                    None => quote_spanned!(span=> each::<#path::__private::#kind, _, _, #input, #output, _>),
                };
                let (own, argument) = of_rings(rings);
                (own, quote_spanned!(span=> #here::__private::#run(#machine, #lanes, #launch, #argument, #given)))
            }
            Form::Actor { input: (_, input), output, .. } => {
                let (input, output) = (messages.alias(input), messages.alias(output));
                let run = quote_spanned!(span=> actor::<_, _, _, #input, #output, _>);
                (Vec::new(), quote_spanned!(span=> #here::__private::#run(#machine, #lanes, #launch, #given)))
            }
            Form::Handler { rings, input, output, .. } => {
                let (input, output, [kind, _]) = (messages.alias(input), messages.alias(output), rings.names());
                let run = quote_spanned!(span=> typed::<#path::__private::#kind, _, _, #input, #output, _>);
                let (own, argument) = of_rings(rings);
                (own, quote_spanned!(span=> #here::__private::#run(#machine, #lanes, #launch, #argument, #given)))
            }
            Form::Launched { arguments, function } | Form::Grid { arguments, function } => {
                let named = arguments.iter().map(|(name, ty)| (own(&format!("argument_{}", unraw(name))), ty.clone()));
                let arguments: Vec<_> = named.collect();
                let names = arguments.iter().map(|(name, _)| name);
                let launch = matches!(form, Form::Launched { .. }).then(|| quote!(#launch,));
                let call = quote_spanned!(function.span()=> #given(#machine, #lanes, #launch #(#names),*));
                (arguments, call)
            }
            Form::Elements { .. } => (Vec::new(), TokenStream::new()),
        };
        let asserted = arguments.iter().map(|(_, ty)| {
            let path = crate::spanned(path, ty.span());
            quote_spanned!(ty.span()=> #path::__layouts::__private::is_argument::<#ty>();)
        });
        let asserted: TokenStream = asserted.collect();
        let (mut names, mut types) = (Vec::new(), Vec::new());
        if !matches!(form, Form::Grid { .. }) {
            names = vec![controls, epoch, idle_ns, batch];
            let control = quote!(#kernel::DevicePointer<#path::__layouts::ControlBlock<u64>>);
            types = vec![control, quote!(#kernel::Epoch), quote!(u64), quote!(u64)];
        }
        for (name, ty) in arguments {
            names.push(name);
            types.push(ty.into_token_stream());
        }
        let untyped = quote!(#kernel::Kernel<(#(#types,)*)>);
        let value = quote!(<#untyped>::new(#text));
        let persistent = |rings: Rings, input: &Type, output: &Type| {
            let [_, format] = rings.names();
            let (own_input, own_output) = (messages.alias(input), messages.alias(output));
            // Safe: the image is of this list, in which this kernel accesses only its rings.
            let value = quote!(unsafe { <#kernel::Persistent<#own_input, #own_output>>::new(#text, IMAGE, #kernel::Rings::#format) });
            (quote!(#kernel::Persistent<#input, #output>), value)
        };

        let is_warp = form.rings() != Some(Rings::Block);
        let lanes_of_device =
            if is_warp { quote!(&unsafe { #path::device::Warp::new() }) } else { quote!(&unsafe { #path::device::Block::new() }) };

        let (mut items, link) = (once, format!("The kernel [`{text}`](fn@{name})."));
        let (documented, constant_type, constant_value) = match form {
            Form::Each { rings, state, input: (taken, input), output: (given, output), body } => {
                let declared = state.iter().map(|(name, ty)| quote!(#name: &mut #ty,));
                let declared = quote!((#(#declared)* #taken: &#input, #given: &mut #output));
                let state = state.iter().map(|(name, _)| quote!(#name,));
                items.extend(self.function(&called, &declared, &quote!(#(#state)* #taken, #given), body));
                let (ty, value) = persistent(*rings, input, output);
                (quote!(#[doc = #link] #deprecated), ty, value)
            }
            Form::Actor { state: (state, _), input: (taken, input), declared, output, body } => {
                items.extend(self.function(&called, declared, &quote!(#state, #taken), body));
                let (ty, value) = persistent(Rings::Indexed, input, output);
                (quote!(#[doc = #link] #deprecated), ty, value)
            }
            Form::Handler { rings, input, output, .. } => {
                let (ty, value) = persistent(*rings, input, output);
                let itself = format_ident!("__{text}_kernel");
                items.extend(quote!(#only_if #[doc(hidden)] #[cfg(not(target_os = "cuda"))] const #itself: #ty = #value;));
                (quote!(#(#attributes)*), ty, itself.into_token_stream())
            }
            Form::Launched { .. } | Form::Grid { .. } | Form::Elements { .. } => (quote!(#(#attributes)*), untyped.clone(), value.clone()),
        };
        items.extend(quote! {
            #only_if
            const _: () = { #asserted };

            #only_if
            #documented
            #[cfg(not(target_os = "cuda"))]
            #visibility const #constant: #constant_type = #constant_value;

            #only_if
            #[cfg(target_os = "cuda")]
            #[unsafe(export_name = #text)]
            unsafe extern "ptx-kernel" fn #entry(#(#names: #types),*) {
                // A function without `unsafe`: the user's expression inherits none.
                #[inline(always)]
                fn #body(#(#names: #types),*) {
                    let (#machine, #lanes) = (&#path::device::Device, #lanes_of_device);
                    let #given = #evaluated;
                    unsafe { #call }
                }
                #body(#(#names),*)
            }
        });
        let taken = quote! {
            let #path::__layouts::__private::core::option::Option::Some((#(#names,)*)) = <#untyped>::arguments(&#value, #words) else { return };
        };
        // In one body, where an error of both is one error.
        let host = quote! {
            |#host: &dyn #path::__layouts::image::KernelHost, #words: &[u64]| {
                // The promises of `Entry::run`'s caller, here and below.
                let #given = #path::__layouts::image::KernelHost::on_each_lane(#host, &|#host| {
                    #taken
                    let (#machine, #lanes) = (&#path::Simulated(#host), &unsafe { #path::Threads::<#is_warp>::new(#host) });
                    let #given = #evaluated;
                    unsafe { #call }
                });
                if !#given {
                    #taken
                    let (#machine, #lanes) = (&#path::Simulated(#host), &#path::Single(#host));
                    let #given = #evaluated;
                    unsafe { #call }
                }
            }
        };
        Expanded { items, entry: quote!(<#untyped>::entry(&#value, #run)), host }
    }

    /// The user's function, `declared` with its parameters in parentheses and what it returns. If it is deprecated, the kernel calls another one with its
    /// body, without a warning.
    fn function(&self, called: &Ident, declared: &TokenStream, names: &TokenStream, body: &Group) -> TokenStream {
        let Self { conditions, attributes, visibility, name, .. } = self;
        let only_if = quote!(#(#conditions)*);
        let (mut body, mut itself) = (body.to_token_stream(), None);
        if called != name {
            let others = attributes.iter().filter(|attribute| !["deprecated", "doc"].iter().any(|name| attribute.path().is_ident(name)));
            itself = Some(quote! {
                #only_if
                #(#others)*
                #[inline(always)]
                fn #called #declared #body
            });
            body = quote!({ #called(#names) });
        }
        quote! {
            #itself
            #only_if
            #(#attributes)*
            #[inline(always)]
            #visibility fn #name #declared #body
        }
    }
}

impl Rings {
    /// Its type in `ringmem_kernels`, and its variant of `Rings` in `ringmem_layouts`: other names than those of the rings, as the compiler's errors give the
    /// path of a type only if another has its name.
    fn names(self) -> [Ident; 2] {
        let names = match self {
            Self::Indexed => ["IndexedRings", "Spsc"],
            Self::Flagged => ["FlaggedRings", "FlagPerSlot"],
            Self::Grouped => ["GroupedRings", "OfGroups"],
            Self::Block => ["IndexedRings", "OfBlock"],
        };
        names.map(|name| format_ident!("{name}"))
    }
}

#[cfg(test)]
mod tests {
    use proc_macro2::Delimiter;

    use super::*;

    fn all_forms(options: &TokenStream) -> String {
        let expanded = expand(quote! {
            the_crate; #options
            pub persistent fn r#move(now: &A, then: &mut B) { *then = *now; }
            #[cfg(any())]
            pub flagged fn fold(state: &mut S, now: &A, then: &mut C) {}
            #[deprecated]
            pub persistent fn old(now: &A, then: &mut A) {}
            persistent fn actor(state: &mut S, now: Option<&A>) -> Option<B> { None }
            persistent fn handler(A) -> B = Handler;
            unsafe persistent fn launched(data: DevicePointer<u8>) = launched;
            unsafe grid fn ends(count: u64) = ends;
            grid fn each(at: Index, x: &f32, all: &[B], y: &mut A, a: S) {}
        });
        expanded.unwrap().to_string()
    }

    #[test]
    fn the_expansion_names_its_crate_by_the_given_path_alone() {
        let text = all_forms(&quote!(layouts: D;));
        assert!(text.contains("the_crate :: __layouts") && !text.contains("ringmem_kernels"), "{text}");
        // No path begins at the root of a crate, where a user's dependency can have any name.
        let rooted =
            text.match_indices(" :: ").filter(|(at, _)| !text[..*at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '>'));
        assert_eq!(rooted.map(|(at, _)| &text[at..]).next(), None);
    }

    /// The tokens in `unsafe` blocks and in bodies of `unsafe` functions, but for those of functions within.
    fn in_unsafe(tokens: TokenStream, is_in: bool, found: &mut Vec<String>) {
        // Of the next block; a function's parameters and its ABI come before.
        let (mut is_unsafe, mut is_function) = (false, false);
        for token in tokens {
            match token {
                TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                    in_unsafe(group.stream(), is_unsafe || is_in && !is_function, found);
                    (is_unsafe, is_function) = (false, false);
                }
                TokenTree::Group(group) => in_unsafe(group.stream(), is_in && !is_function, found),
                token => {
                    let text = token.to_string();
                    match text.as_str() {
                        "unsafe" => is_unsafe = true,
                        "fn" => is_function = true,
                        ";" | "," | "=" => (is_unsafe, is_function) = (false, false),
                        _ => {}
                    }
                    if is_in {
                        found.push(text);
                    }
                }
            }
        }
    }

    #[test]
    fn no_token_of_the_user_stands_in_an_unsafe_block() {
        let expanded = all_forms(&quote!(layouts: D; abi: user;));
        let mut tokens = Vec::new();
        in_unsafe(expanded.parse().unwrap(), false, &mut tokens);
        assert!(tokens.iter().any(|token| token == "__RingmemMessage0") && tokens.iter().any(|token| token == "__RingmemElement0"));
        let of_the_user =
            ["A", "B", "C", "D", "S", "f32", "Handler", "DevicePointer", "user", "launched", "ends", "x", "now", "then", "None"];
        let found: Vec<&str> = of_the_user.into_iter().filter(|name| tokens.iter().any(|token| token == name)).collect();
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn a_second_use_defines_a_macro_of_the_crate_twice() {
        let text = all_forms(&quote!());
        let guard = "# [cfg (target_os = \"cuda\")] # [doc (hidden)] # [macro_export] macro_rules ! use_kernels_once";
        assert_eq!(text.matches(guard).count(), 1, "{text}");
    }

    #[test]
    fn a_message_has_the_conditions_of_all_its_kernels() {
        let condition = |predicate: &str| predicate.parse::<TokenStream>().ok();
        let kernels: Vec<Kernel> = ["a(now: &A, then: &mut A)", "b(now: &A, then: &mut B)", "c(now: &B, then: &mut C)"]
            .map(|head| syn::parse_str(&format!("persistent fn {head} {{}}")).unwrap())
            .into();
        let conditions = [condition("x"), None, condition("y")];
        let messages = Types::of("M", kernels.iter().zip(&conditions), Form::messages);
        assert_eq!(messages.types.len(), 3);
        assert!(messages.conditions[0].is_none() && messages.conditions[1].is_none());
        assert_eq!(messages.conditions[2].as_ref().unwrap().to_string(), "y");
        let position = position(&quote!(p), &[condition("x"), None, None, condition("y")]).to_string();
        assert_eq!(
            position,
            "{ 2usize + p :: __layouts :: __private :: core :: cfg ! (x) as usize + p :: __layouts :: __private :: core :: cfg ! (y) as usize }"
        );
    }
}
