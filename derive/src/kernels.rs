//! `kernels!`: device entries, host functions, image and ABI.
//!
//! Function bodies and expressions pass unchanged, so the compiler's errors point into them.

use proc_macro2::{Group, Ident, Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Attribute, Expr, LitStr, Result, Type, Visibility};

use crate::layout::unraw;

mod parse;

struct Kernels {
    layouts: Vec<Type>,
    /// An existing `Abi` with all layouts.
    abi: Option<Expr>,
    ptx: Option<LitStr>,
    list: Vec<Kernel>,
}

struct Kernel {
    attributes: Vec<Attribute>,
    visibility: Visibility,
    name: Ident,
    form: Form,
}

#[derive(Clone, Copy, PartialEq)]
enum Rings {
    Indexed,
    Flagged,
}

#[allow(clippy::large_enum_variant, reason = "a few values, at compile time")]
enum Form {
    /// `persistent fn step(now: &Particle, then: &mut Particle) { .. }`, optionally with `state: &mut State` first.
    Each { rings: Rings, state: Option<(Ident, Type)>, input: (Ident, Type), output: (Ident, Type), body: Group },
    /// `persistent fn step(Particle) -> Particle = HANDLER;`
    Handler { rings: Rings, input: Type, output: Type, handler: TokenStream },
    /// `persistent fn count(data: DevicePointer<u8>, length: u64) = FUNCTION;`
    Launched { arguments: Vec<(Ident, Type)>, function: TokenStream },
    /// `grid fn scale(data: DevicePointer<f32>, length: u64) = FUNCTION;`
    Grid { arguments: Vec<(Ident, Type)>, function: TokenStream },
}

pub(crate) fn expand(input: TokenStream) -> Result<TokenStream> {
    let Kernels { layouts, abi, ptx, list } = syn::parse2(input)?;
    let path = quote!(::ringmem_kernels);
    let messages = list.iter().flat_map(|kernel| kernel.form.messages());
    let messages = Messages::of(messages);
    let built = || std::path::Path::new(&std::env::var_os("OUT_DIR")?).join("kernels.ptx").to_str().map(str::to_owned);
    let ptx = match ptx.map(|file| file.value()).or_else(|| built().filter(|file| std::path::Path::new(file).exists())) {
        Some(file) => quote!(include_bytes!(#file)),
        None => quote!(b""),
    };
    let (abi, own) = match abi {
        Some(abi) => (quote!((#abi)), None),
        None => {
            let set = messages.set(&layouts, &path);
            let own = quote! {
                /// The layouts that the host and these kernels share.
                pub const ABI: #path::__layouts::Abi = #path::__layouts::Abi::of(#path::__layouts::layout_set!(#path::__layouts::LAYOUTS, #set;));
            };
            (quote!(ABI), Some(own))
        }
    };
    let (mut items, mut entries, mut hosts) = (TokenStream::new(), TokenStream::new(), Vec::new());
    for (index, kernel) in list.iter().enumerate() {
        let (item, value, host) = kernel.expand(&path, &abi, &messages);
        items.extend(item);
        entries.extend(quote!(#value.entry(__RINGMEM.1[#index]),));
        hosts.push(host);
    }
    let table = messages.table(&path, &hosts);
    Ok(quote! {
        #own

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
        #items

        // Last, so that the last error of a second use names it.
        #[doc(hidden)]
        mod __use_kernels_once_per_crate {}
    })
}

struct Messages<'a>(Vec<&'a Type>);

impl<'a> Messages<'a> {
    fn of(types: impl Iterator<Item = &'a Type>) -> Self {
        let mut list = Vec::<&Type>::new();
        for ty in types {
            if !list.iter().any(|listed| is_same(listed, ty)) {
                list.push(ty);
            }
        }
        Self(list)
    }

    fn first(&self, ty: &'a Type) -> &'a Type {
        self.0.iter().find(|first| is_same(first, ty)).unwrap_or(&ty)
    }

    /// The messages' kinds and layouts and the host's functions in one body: there, another type is one error.
    fn table(&self, path: &TokenStream, hosts: &[TokenStream]) -> TokenStream {
        let messages: Vec<_> = self
            .0
            .iter()
            .map(|ty| {
                let path = crate::spanned(path, ty.span());
                quote_spanned!(ty.span()=> #path::__layouts::__private::message::<#ty>())
            })
            .collect();
        let checks = self.0.iter().enumerate().map(|(index, ty)| {
            let (path, others) = (crate::spanned(path, ty.span()), 0..index);
            quote_spanned!(ty.span()=> #path::__layouts::__private::another_kind(__RINGMEM.0[#index], &[#(__RINGMEM.0[#others]),*]);)
        });
        let (count, kernels) = (messages.len(), hosts.len());
        let message = quote!(#path::__layouts::LayoutDescriptor);
        quote! {
            #[cfg(not(target_os = "cuda"))]
            #[doc(hidden)]
            const __RINGMEM: ([(u64, #message); #count], [unsafe fn(&dyn #path::__layouts::image::KernelHost, &[u64]); #kernels]) =
                ([#(#messages),*], [#(#hosts),*]);
            #[cfg(target_os = "cuda")]
            const __RINGMEM: ([(u64, #message); #count],) = ([#(#messages),*],);
            const _: () = { #(#checks)* };
        }
    }

    fn set(&self, layouts: &[Type], path: &TokenStream) -> TokenStream {
        let more = (0..self.0.len()).filter(|&index| !layouts.iter().any(|listed| is_same(listed, self.0[index])));
        quote!(&[#(<#layouts as #path::__layouts::Layout>::DESCRIPTOR,)* #(__RINGMEM.0[#more].1),*])
    }
}

fn is_same(a: &Type, b: &Type) -> bool {
    a.to_token_stream().to_string() == b.to_token_stream().to_string()
}

impl Form {
    fn messages(&self) -> Vec<&Type> {
        match self {
            Self::Each { input: (_, input), output: (_, output), .. } | Self::Handler { input, output, .. } => vec![input, output],
            Self::Launched { .. } | Self::Grid { .. } => Vec::new(),
        }
    }
}

impl Kernel {
    fn expand(&self, path: &TokenStream, abi: &TokenStream, messages: &Messages<'_>) -> (TokenStream, TokenStream, TokenStream) {
        let Self { attributes, visibility, name, form } = self;
        let text = unraw(name);
        let constant = Ident::new(&text.to_uppercase(), name.span());
        let entry = format_ident!("__{name}_on_the_device");
        // Hygienic: the user's expressions cannot meet them.
        let [machine, lanes, words, controls, epoch, idle_ns, batch] =
            ["machine", "lanes", "words", "controls", "epoch", "idle_ns", "batch"].map(|name| Ident::new(name, Span::mixed_site()));
        let kernel = quote!(#path::__layouts::kernel);
        let launch = quote!(&#path::Launch::new(#controls, #epoch, #idle_ns, #batch, #abi.hash));

        // The user's expression, outside of `unsafe`.
        let evaluated = match form {
            Form::Each { .. } => name.to_token_stream(),
            Form::Handler { handler: expression, .. }
            | Form::Launched { function: expression, .. }
            | Form::Grid { function: expression, .. } => expression.clone(),
        };
        let given = Ident::new("given", Span::mixed_site().located_at(evaluated.span()));
        let (own, call) = match form {
            Form::Each { rings, state, input: (_, input), output: (_, output), .. } => {
                let (input, output) = (messages.first(input), messages.first(output));
                let run = match state {
                    Some((_, state)) => quote!(fold::<#rings, _, _, #state, #input, #output, _>),
                    None => quote!(each::<#rings, _, _, #input, #output, _>),
                };
                (Vec::new(), quote!(#path::__private::#run(#machine, #lanes, #launch, #given)))
            }
            Form::Handler { rings, input, output, .. } => {
                let (input, output) = (messages.first(input), messages.first(output));
                let run = quote!(typed::<#rings, _, _, #input, #output, _>);
                (Vec::new(), quote!(#path::__private::#run(#machine, #lanes, #launch, #given)))
            }
            Form::Launched { arguments, function } => {
                let names = arguments.iter().map(|(name, _)| name);
                (arguments.clone(), quote_spanned!(function.span()=> #given(#machine, #lanes, #launch, #(#names),*)))
            }
            Form::Grid { arguments, function } => {
                let names = arguments.iter().map(|(name, _)| name);
                (arguments.clone(), quote_spanned!(function.span()=> #given(#machine, #lanes, #(#names),*)))
            }
        };
        let asserted = own.iter().map(|(_, ty)| {
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
        for (name, ty) in own {
            names.push(name);
            types.push(ty.into_token_stream());
        }
        let untyped = quote!(#kernel::Kernel<(#(#types,)*)>);
        let value = quote!(<#untyped>::new(#text));

        let mut items = TokenStream::new();
        let (documented, constant_type, constant_value) = match form {
            Form::Each { rings, state, input: (taken, input), output: (given, output), body } => {
                let state = state.iter().map(|(name, ty)| quote!(#name: &mut #ty,));
                items = quote! {
                    #(#attributes)*
                    #[inline(always)]
                    #visibility fn #name(#(#state)* #taken: &#input, #given: &mut #output) #body
                };
                let link = format!("The kernel [`{text}`](fn@{text}).");
                let (ty, value) = rings.persistent(&kernel, input, output, &text);
                (quote!(#[doc = #link]), ty, value)
            }
            Form::Handler { rings, input, output, .. } => {
                let (ty, value) = rings.persistent(&kernel, input, output, &text);
                (quote!(#(#attributes)*), ty, value)
            }
            Form::Launched { .. } | Form::Grid { .. } => (quote!(#(#attributes)*), untyped.clone(), value.clone()),
        };
        items.extend(quote! {
            const _: () = { #asserted };

            #documented
            #[cfg(not(target_os = "cuda"))]
            #visibility const #constant: #constant_type = #constant_value;

            #[cfg(target_os = "cuda")]
            #[unsafe(export_name = #text)]
            unsafe extern "ptx-kernel" fn #entry(#(#names: #types),*) {
                let (#machine, #lanes) = (&#path::device::Device, &#path::device::Warp);
                let #given = #evaluated;
                unsafe { #call }
            }
        });
        let host = quote! {
            |host: &dyn #path::__layouts::image::KernelHost, #words: &[u64]| {
                let #path::__layouts::__private::core::option::Option::Some((#(#names,)*)) = #value.arguments(#words) else { return };
                let (#machine, #lanes) = (&#path::Simulated(host), &#path::Single(host));
                let #given = #evaluated;
                // The promise of `Entry::run`'s caller.
                unsafe { #call }
            }
        };
        (items, value, host)
    }
}

impl ToTokens for Rings {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        (*self == Self::Flagged).to_tokens(tokens);
    }
}

impl Rings {
    fn persistent(self, kernel: &TokenStream, input: &Type, output: &Type, name: &str) -> (TokenStream, TokenStream) {
        let ty = quote!(#kernel::Persistent<#input, #output>);
        // Safe: the image is of this list, in which this kernel accesses only its rings.
        (ty.clone(), quote!(unsafe { <#ty>::new(#name, IMAGE, #self) }))
    }
}
