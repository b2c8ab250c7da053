//! The colours measured: readable, apart from one another, for everybody's eyes.

use super::palette::{PaletteRole, exact, fixed, named, nearest, shown};
use super::*;

const ROLES: [PaletteRole; 20] = [
    PaletteRole::Text,
    PaletteRole::Faint,
    PaletteRole::Heading,
    PaletteRole::Alarm,
    PaletteRole::Caution,
    PaletteRole::Info,
    PaletteRole::Origin,
    PaletteRole::Held,
    PaletteRole::InUse,
    PaletteRole::InUseFull,
    PaletteRole::Suspected,
    PaletteRole::Reclaimable,
    PaletteRole::Unattributed,
    PaletteRole::Full,
    PaletteRole::WorkLow,
    PaletteRole::WorkHigh,
    PaletteRole::Tag,
    PaletteRole::Focus,
    PaletteRole::Prompt,
    PaletteRole::Key,
];
const DEPTHS: [Depth; 4] = [Depth::Mono, Depth::Ansi16, Depth::Ansi256, Depth::True];
const SEVERITIES: [Severity; 3] = [Severity::Info, Severity::Warning, Severity::Critical];

/// sRGB to light (IEC 61966-2-1).
fn linear(color: [u8; 3]) -> [f64; 3] {
    color.map(|value| {
        let value = f64::from(value) / 255.0;
        if value <= 0.040_45 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
    })
}

/// WCAG's relative luminance.
fn luminance(color: [u8; 3]) -> f64 {
    let [red, green, blue] = linear(color);
    0.2126 * red + 0.7152 * green + 0.0722 * blue
}

/// WCAG's contrast ratio, from 1 to 21.
fn contrast(one: [u8; 3], other: [u8; 3]) -> f64 {
    let (one, other) = (luminance(one), luminance(other));
    (one.max(other) + 0.05) / (one.min(other) + 0.05)
}

#[test]
fn every_colour_is_readable_on_its_ground() {
    for theme in Theme::ALL {
        let least = if theme == Theme::HighContrast { 7.0 } else { 4.5 };
        let ground = exact(theme, PaletteRole::Ground);
        assert_eq!(fixed(nearest(ground)), ground, "{theme:?}");
        for role in ROLES {
            let color = exact(theme, role);
            for color in [color, fixed(nearest(color))] {
                let ratio = contrast(color, ground);
                assert!(ratio >= least, "{theme:?} {role:?} {color:?}: {ratio:.2}");
            }
        }
    }
    assert!(contrast([0; 3], [255; 3]) > 20.99 && contrast([119; 3], [255; 3]) < 4.5);
}

#[test]
fn the_nearest_of_xterms_colours_is_chosen() {
    let mut color = [0u8; 3];
    for red in (0..=255).step_by(5) {
        for green in (0..=255).step_by(17) {
            for blue in (0..=255).step_by(15) {
                color = [red, green, blue];
                let off = |index: u8| {
                    let parts = fixed(index).into_iter().zip(color);
                    let squares = parts.map(|(a, b)| u32::from(a.abs_diff(b)).pow(2));
                    squares.sum::<u32>()
                };
                let best = (16..=255).map(off).min().unwrap();
                assert_eq!(off(nearest(color)), best, "{color:?}");
            }
        }
    }
    assert_eq!(color, [255; 3], "the walk reaches the end");
    assert_eq!(nearest([255, 0, 0]), 196);
    assert_eq!(nearest([0x8a; 3]), 245);
}

#[test]
fn severities_differ_in_every_theme_and_depth() {
    for theme in Theme::ALL {
        for depth in DEPTHS {
            let styles = Styles { theme, depth };
            let badges = SEVERITIES.map(|severity| styles.badge(severity));
            assert!(badges[0] != badges[1] && badges[1] != badges[2] && badges[0] != badges[2]);
            assert_ne!(styles.alarm(), styles.caution());
            assert_ne!(styles.focused(), styles.heading());
            let colors = badges.map(|style| style.fg);
            if styles.is_mono() {
                assert_eq!(colors, [None; 3], "{styles:?}");
                assert_eq!(styles.ground(), Style::new());
            } else {
                let apart =
                    colors[0] != colors[1] && colors[1] != colors[2] && colors[0] != colors[2];
                assert!(apart, "{styles:?}: {colors:?}");
            }
        }
    }
}

#[test]
fn a_chart_is_brighter_the_higher_it_is_and_readable_at_every_height() {
    for theme in Theme::ALL {
        let ground = exact(theme, PaletteRole::Ground);
        for depth in DEPTHS {
            let styles = Styles { theme, depth };
            for of in [ChartColor::Memory, ChartColor::Work] {
                let shares = (0..=20u32).map(|it| f64::from(it) / 20.0);
                let colors: Vec<_> = shares.map(|share| styles.chart(of, share).fg).collect();
                if styles.is_mono() {
                    assert!(colors.iter().all(Option::is_none), "{styles:?}");
                    continue;
                }
                let colors: Vec<_> = colors.into_iter().flatten().collect();
                assert_eq!(colors.len(), 21);
                let exact = depth > Depth::Ansi16;
                let ratios = colors.iter().filter_map(|color| shown(*color));
                let ratios: Vec<f64> = ratios.map(|color| contrast(color, ground)).collect();
                for two in ratios.windows(2).filter(|_| depth == Depth::True) {
                    assert!(two[0] <= two[1] + 0.05, "{styles:?} {of:?}: {ratios:?}");
                }
                // Of what is drawn and not written, WCAG asks for 3 (1.4.11).
                assert!(!exact || ratios.iter().all(|ratio| *ratio >= 3.0), "{styles:?}");
                assert!(!exact || ratios[0] < ratios[20], "{styles:?}: {ratios:?}");
            }
        }
    }
}

#[test]
fn what_memory_is_used_for_has_a_colour_of_its_own() {
    use FillLevel::{Full, Ok, Warm};
    for theme in Theme::ALL {
        for depth in [Depth::Ansi256, Depth::True] {
            let styles = Styles { theme, depth };
            let in_use = [Ok, Warm, Full].map(|level| styles.in_use(level));
            let shares = [styles.suspected(), styles.reclaimable(), styles.unattributed()];
            if styles.is_mono() {
                continue;
            }
            for (at, one) in shares.iter().enumerate() {
                let mut others = in_use.iter().chain(&shares[at + 1..]);
                assert!(others.all(|it| it.fg != one.fg), "{styles:?}");
            }
            // One that is full is not as green as one that is empty.
            assert!(in_use[0].fg != in_use[2].fg && in_use[0] != in_use[1]);
            assert_ne!(in_use[1], in_use[2]);
        }
        for depth in DEPTHS {
            let styles = Styles { theme, depth };
            let strain = [Ok, Warm, Full].map(|level| styles.strain(level));
            assert!(strain[0] != strain[1] && strain[1] != strain[2] && strain[0] != strain[2]);
            assert_ne!(styles.suspected(), styles.reclaimable());
        }
    }
}

#[test]
fn high_contrast_is_never_dim() {
    for depth in DEPTHS {
        let theme = Theme::HighContrast;
        let styles = Styles { theme, depth };
        for style in [styles.faint(), styles.suspected()] {
            assert!(!style.add_modifier.contains(Modifier::DIM));
        }
        let is_bold = styles.held().add_modifier.contains(Modifier::BOLD);
        assert_eq!(is_bold, depth > Depth::Mono);
    }
}

/// As an eye without one kind of cone sees it: Machado, Oliveira and Fernandes, 2009, at full severity,
/// on linear light.
const SIGHTS: [(&str, [[f64; 3]; 3]); 4] = [
    ("all cones", [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
    (
        "protanopia",
        [
            [0.152_286, 1.052_583, -0.204_868],
            [0.114_503, 0.786_281, 0.099_216],
            [-0.003_882, -0.048_116, 1.051_998],
        ],
    ),
    (
        "deuteranopia",
        [
            [0.367_322, 0.860_646, -0.227_968],
            [0.280_085, 0.672_501, 0.047_413],
            [-0.011_820, 0.042_940, 0.968_881],
        ],
    ),
    (
        "tritanopia",
        [
            [1.255_528, -0.076_749, -0.178_779],
            [-0.078_411, 0.930_809, 0.147_602],
            [0.004_733, 0.691_367, 0.303_900],
        ],
    ),
];

/// CIE Lab of a colour (D65) through such an eye.
fn seen(color: [u8; 3], sight: &[[f64; 3]; 3]) -> [f64; 3] {
    let dot = |row: &[f64; 3], of: &[f64; 3]| -> f64 {
        row.iter().zip(of).map(|(one, other)| one * other).sum()
    };
    let light = linear(color);
    let light: [f64; 3] = std::array::from_fn(|at| dot(&sight[at], &light).clamp(0.0, 1.0));
    let xyz = [
        dot(&[0.4124, 0.3576, 0.1805], &light) / 0.9505,
        dot(&[0.2126, 0.7152, 0.0722], &light),
        dot(&[0.0193, 0.1192, 0.9505], &light) / 1.089,
    ];
    let [x, y, z] = xyz
        .map(|value| if value > 0.008_856 { value.cbrt() } else { 7.787 * value + 16.0 / 116.0 });
    [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
}

fn difference(one: [f64; 3], other: [f64; 3]) -> f64 {
    let squares = one.iter().zip(other).map(|(a, b)| (a - b).powi(2));
    squares.sum::<f64>().sqrt()
}

#[test]
fn severities_stay_apart_for_every_kind_of_sight() {
    // A difference of 2 can just be seen side by side; one of 25 is another colour at a glance.
    let theme = Theme::ColourBlind;
    let roles = [PaletteRole::Info, PaletteRole::Caution, PaletteRole::Alarm];
    for (name, sight) in &SIGHTS {
        for colors in [
            roles.map(|role| exact(theme, role)),
            roles.map(|role| fixed(nearest(exact(theme, role)))),
            roles.map(|role| shown(named(theme, role)).unwrap()),
        ] {
            let [info, caution, alarm] = colors.map(|color| seen(color, sight));
            for (pair, one, other) in [
                ("info, caution", info, caution),
                ("caution, alarm", caution, alarm),
                ("info, alarm", info, alarm),
            ] {
                let apart = difference(one, other);
                assert!(apart > 25.0, "{name}: {pair} {colors:?}: {apart:.0}");
            }
        }
    }
    // What is used and what can be had back are apart as well, however full it is.
    for (name, sight) in &SIGHTS {
        let used = [PaletteRole::InUse, PaletteRole::Held, PaletteRole::InUseFull];
        for role in used {
            let [used, waste] =
                [role, PaletteRole::Reclaimable].map(|it| seen(exact(theme, it), sight));
            let apart = difference(used, waste);
            assert!(apart > 25.0, "{name}: {role:?} {apart:.0}");
        }
    }
    // The measure tells what it should: red and green, the usual pair, run together for some.
    let (red, green) = ([170, 60, 40], [100, 105, 40]);
    let [plain, deutan] =
        [0, 2].map(|at| difference(seen(red, &SIGHTS[at].1), seen(green, &SIGHTS[at].1)));
    assert!(plain > 50.0 && deutan < 25.0, "{plain:.0} {deutan:.0}");
}

#[test]
fn a_key_goes_through_all_themes_and_their_names_lead_back() {
    let mut theme = Theme::default();
    for expected in Theme::ALL {
        assert_eq!(theme, expected);
        let written = serde_json::to_string(&theme).unwrap();
        assert_eq!(written, format!("\"{}\"", theme.name()));
        assert_eq!(serde_json::from_str::<Theme>(&written).unwrap(), theme);
        theme = theme.next();
    }
    assert_eq!(theme, Theme::default());
    assert!(serde_json::from_str::<Theme>("\"Dark\"").is_err());
}

#[test]
fn the_ground_is_painted_where_colours_are_exact() {
    let ground = |theme, depth| Styles { theme, depth }.ground();
    assert_eq!(ground(Theme::Dark, Depth::Ansi16), Style::new());
    assert_eq!(ground(Theme::Light, Depth::True).bg, Some(Color::Rgb(255, 255, 255)));
    assert_eq!(ground(Theme::Dark, Depth::Ansi256).bg, Some(Color::Indexed(16)));
    let strong = ground(Theme::HighContrast, Depth::Ansi16);
    assert_eq!((strong.fg, strong.bg), (Some(Color::White), Some(Color::Black)));
    assert_eq!(ground(Theme::Mono, Depth::True), Style::new());
}

#[test]
fn the_number_of_colours_is_read_from_the_environment() {
    use Depth::{Ansi16, Ansi256, Mono, True};
    for (term, colorterm, in_screen, depth) in [
        ("xterm-256color", "truecolor", false, True),
        ("xterm-256color", "24bit", false, True),
        ("xterm-256color", "yes", false, Ansi256),
        ("xterm-256color", "", false, Ansi256),
        ("screen-256color", "truecolor", true, Ansi256),
        ("screen", "truecolor", true, Ansi256),
        ("tmux-256color", "truecolor", false, True),
        ("xterm-direct", "", false, True),
        ("xterm-kitty", "", false, True),
        ("alacritty", "", false, True),
        ("xterm", "", false, Ansi16),
        ("screen", "", true, Ansi16),
        ("linux", "", false, Ansi16),
        ("rxvt", "", false, Ansi16),
        ("vt100", "truecolor", false, Mono),
        ("vt220", "", false, Mono),
        ("xterm-mono", "", false, Mono),
        ("linux-m", "", false, Mono),
        ("dumb", "truecolor", false, Mono),
        ("", "", false, Mono),
    ] {
        let found = Depth::of_terminal(term, colorterm, in_screen);
        assert_eq!(found, depth, "{term} {colorterm} {in_screen}");
    }
}

#[test]
fn a_light_background_is_read_from_the_environment() {
    for (variable, theme) in [
        ("", Theme::Dark),
        ("15;0", Theme::Dark),
        ("15;8", Theme::Dark),
        ("0;15", Theme::Light),
        ("0;default;15", Theme::Light),
        ("0;7", Theme::Light),
        ("15;default", Theme::Dark),
        ("0;99999", Theme::Dark),
        (";", Theme::Dark),
    ] {
        assert_eq!(Theme::of_terminal(variable), theme, "{variable}");
    }
}
